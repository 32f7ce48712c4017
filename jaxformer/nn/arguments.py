"""Checks of the arguments of layers, whose errors name the layer and not an einsum."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from jaxformer.errors import UserError


def check_sizes(layer: Any, *names: str) -> None:
    """Checks that sizes of a layer are positive integers, or None where None is the default.

    Raises:
      UserError: Names the layer, the attribute and what was given.
    """
    owner = type(layer).__name__
    for name in names:
        size = getattr(layer, name)
        if size is None and name in ("d_k", "d_v"):
            continue
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
            given = repr(size) if isinstance(size, int | float | str) else type(size).__name__
            advice = "; layers take sizes, models take a ModelConfig"
            raise UserError(f"{owner}: expected {name} to be 1 or more, got {given}{advice}")


def check_choice(layer: Any, name: str, choices: Sequence[str]) -> None:
    """Checks that an attribute of a layer is one of some names.

    Raises:
      UserError: Names the layer, the attribute, the choices and what was given.
    """
    if (given := getattr(layer, name)) not in choices:
        raise UserError(
            f"{type(layer).__name__}: expected {name} to be {', '.join(map(repr, choices))}, got "
            f"{given!r:.80}"
        )


def check_activations(
    owner: str, name: str, x: Array, width: int | None = None, *, axes: int | None = None
) -> None:
    """Checks that activations are [batch, length, width].

    Args:
      owner: Name of the layer.
      name: Name of the argument.
      x: The activations.
      width: Required size of the last axis; any size when None.
      axes: Required number of axes; one or more when None.

    Raises:
      UserError: Names the layer and the shape that it expects.
    """
    wrong_axes = x.ndim < 1 if axes is None else x.ndim != axes
    if wrong_axes or (width is not None and x.shape[-1] != width):
        leading = "batch, length, " if axes else "..., "
        size = "d_model" if width is None else f"d_model={width}"
        raise UserError(f"{owner}: expected {name} of shape [{leading}{size}], got {x.shape}")


def check_mask(owner: str, name: str, mask: Array, shape: tuple) -> None:
    """Checks that a mask is boolean and broadcasts to [batch, heads, queries, keys].

    Args:
      owner: Name of the layer.
      name: Name of the argument.
      mask: [batch or 1, heads or 1, queries or 1, keys].
      shape: Batch, queries and keys; symbolic sizes while exporting.

    Raises:
      UserError: Names the layer, and the shape and dtype that it expects.
    """
    batch, queries, keys = shape
    fits = mask.ndim == 4 and all(
        size in (1, expected)
        for size, expected in zip(
            (mask.shape[0], *mask.shape[2:]), (batch, queries, keys), strict=True
        )
    )
    if not fits or mask.dtype != bool:
        raise UserError(
            f"{owner}: expected {name} of booleans, True where a query may attend, of shape "
            f"[batch={batch}, 1, queries={queries}, keys={keys}] or 1 in place of a size, got "
            f"{mask.dtype} of shape {mask.shape}"
        )


def check_ids(name: str, ids: Any, size: int) -> None:
    """Checks token ids, [batch, length]. Within ``jax.jit`` only their shape can be checked.

    Raises:
      UserError: They have another shape, or an id is negative or not less than ``size``.
    """
    if getattr(ids, "ndim", None) != 2:
        shape = f"shape {ids.shape}" if hasattr(ids, "shape") else type(ids).__name__
        raise UserError(
            f"{name}: expected an array of token ids of shape [batch, length], got {shape}"
        )
    if isinstance(ids, Tracer) or not ids.size:
        return
    values = np.asarray(ids)  # jax.Array.min would be traced.
    lowest, highest = values.min(), values.max()
    if lowest < 0 or highest >= size:
        raise UserError(
            f"{name}: expected token ids from 0 to {size - 1}, the vocabulary's, got ids from "
            f"{lowest} to {highest}"
        )


def check_length(name: str, length: int, longest: int) -> None:
    """Checks that a sequence is no longer than the model allows.

    Raises:
      UserError: The sequence is longer.
    """
    if length > longest:
        raise UserError(
            f"{name} of {length} tokens: the model allows at most {longest} (model.max_length)"
        )
