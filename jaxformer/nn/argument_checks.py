"""Checks arguments of layers, so that errors name the layer instead of an einsum."""

from collections.abc import Iterable, Sequence, Set
from typing import Any

import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from jaxformer.errors import UserError


def check_sizes(layer: Any, *names: str) -> None:
    """Checks that sizes of a layer are positive integers, or None where None is the default."""
    owner = type(layer).__name__
    for name in names:
        size = getattr(layer, name)
        if size is None and name in ("d_k", "d_v", "num_kv_heads", "memory_width"):
            continue

        is_bool = isinstance(size, bool)
        if is_bool or not isinstance(size, int | np.integer) or size < 1:
            is_plain = isinstance(size, int | float | str)
            given = repr(size) if is_plain else type(size).__name__
            advice = "; layers take sizes, models take a ModelConfig"
            raise UserError(f"{owner}: expected {name} to be 1 or more, got {given}{advice}")


def check_choice(layer: Any, name: str, choices: Sequence[str]) -> None:
    """Checks that an attribute of a layer is one of some names."""
    given = getattr(layer, name)
    if given not in choices:
        owner = type(layer).__name__
        expected = ", ".join(map(repr, choices))
        raise UserError(f"{owner}: expected {name} to be {expected}, got {given!r:.80}")


def check_supported(
    owner: str,
    names: Iterable[str],
    supported: Set[str],
    reason: str,
) -> None:
    """Checks that all names of given fields or arguments are among those that a layer supports."""
    for name in names:
        if name not in supported:
            raise UserError(f"{owner}: expected no {name}, {reason}")


def check_recurrence(
    owner: str,
    keys: Any,
    memory: Any,
    cache: Any,
    *,
    state: type,
    rules: Set[str] = frozenset(),
    reason: str,
) -> None:
    """Checks the arguments of ``attend`` of a layer that keeps a state instead of keys and values.

    The keys may have these rules, and the cache is None or a state. Positions are never refused,
    since only encodings of them use them.
    """
    supported = set(rules)
    if keys.slots is not None and not keys.slots.is_prompt:
        # The mask hides the keys of other beams, which a state never has.
        supported.add("mask")
    check_supported(owner, keys.rules(), supported, reason=reason)

    if memory is not None:
        raise UserError(f"{owner}: expected no memory, {reason}")

    if (cache is None) != (keys.slots is None):
        raise UserError(f"{owner}: a cache needs keys of its slots, from Slots.keys")
    if cache is not None and not isinstance(cache, state):
        raise UserError(
            f"{owner}: expected a cache from init_cache, a {state.__name__}, got a "
            f"{type(cache).__name__}"
        )


def check_activations(
    owner: str,
    name: str,
    x: Array,
    width: int | None = None,
    *,
    axes: int | None = None,
) -> None:
    """Checks the width of an argument of a layer, and its number of axes, at least one."""
    has_wrong_axes = x.ndim < 1 if axes is None else x.ndim != axes
    has_wrong_width = not has_wrong_axes and width is not None and x.shape[-1] != width

    if has_wrong_axes or has_wrong_width:
        leading = "batch, length, " if axes else "..., "
        size = "d_model" if width is None else f"d_model={width}"
        raise UserError(f"{owner}: expected {name} of shape [{leading}{size}], got {x.shape}")


def check_mask(owner: str, mask: Array, x: Array, seen: Array) -> None:
    """Checks that a mask is boolean and broadcasts to [batch, heads, queries, keys]."""
    batch, queries, _ = x.shape
    keys = seen.shape[1]
    fits = (
        mask.ndim == 4
        and mask.shape[0] in (1, batch)
        and mask.shape[2] in (1, queries)
        and mask.shape[3] in (1, keys)
    )

    if not fits or mask.dtype != bool:
        raise UserError(
            f"{owner}: expected mask of booleans, True where a query may attend, of shape "
            f"[batch={batch}, 1, queries={queries}, keys={keys}] or 1 in place of a size, got "
            f"{mask.dtype} of shape {mask.shape}"
        )


def check_ids(name: str, ids: Any, size: int) -> None:
    """Checks token ids, [batch, length]. Within ``jax.jit`` only their shape can be checked."""
    if getattr(ids, "ndim", None) != 2:
        has_shape = hasattr(ids, "shape")
        shape = f"shape {ids.shape}" if has_shape else type(ids).__name__
        raise UserError(
            f"{name}: expected an array of token ids of shape [batch, length], got {shape}"
        )

    is_known = not isinstance(ids, Tracer)
    if not is_known or not ids.size:
        return

    values = np.asarray(ids)  # jax.Array.min would be traced.
    lowest = values.min()
    highest = values.max()
    if lowest < 0 or highest >= size:
        raise UserError(
            f"{name}: expected token ids from 0 to {size - 1}, the vocabulary's, got ids from "
            f"{lowest} to {highest}"
        )


def check_length(name: str, length: int, longest: int) -> None:
    """Checks that a sequence is no longer than the model allows."""
    if length > longest:
        raise UserError(
            f"{name} of {length} tokens: the model allows at most {longest} (model.max_length)"
        )
