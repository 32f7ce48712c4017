"""Frozen parameters: ``training.freeze``."""

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, PyTree

from jaxformer.errors import UserError
from jaxformer.nn.parameters import ParameterInfo
from jaxformer.training.averaging import Optimizer
from jaxformer.training.paths import path_of, paths_with


class _Frozen(NamedTuple):
    """Parameters that are not trained."""

    whole: set[str]  # their paths
    layers: dict[str, list[slice]]  # of stacks, by path


def freeze(
    optimizer: Optimizer,
    names: str | None,
    describe: Callable[[], PyTree],
) -> Optimizer:
    """Returns an optimizer that leaves the parameters of ``names`` unchanged: ``training.freeze``.

    It keeps no state for them, nor for frozen layers of a stack. ``describe`` returns the
    parameters or a description of them.
    """
    if names is None:
        return optimizer

    paths = _paths(describe())
    frozen = _find_frozen(names, paths)
    if len(frozen.whole) == len(paths):
        raise UserError(f"training.freeze={names} freezes all parameters; leave some to train")
    if frozen.layers:
        optimizer = _freeze_layers(optimizer, frozen.layers)

    def label(path: jax.tree_util.KeyPath, _: Any) -> str:
        return "frozen" if path_of(path) in frozen.whole else "trained"

    labels = functools.partial(jax.tree.map_with_path, label)
    return optax.multi_transform(
        {"trained": optimizer, "frozen": optax.set_to_zero()},
        labels,
    )


def stop_gradients(params: PyTree, names: str | None) -> PyTree:
    """Returns equal parameters, through which no gradient reaches the parameters of ``names``.

    Backpropagation then ends at the first layer that is trained, and computes no gradients of
    matrices that are frozen. A stack that runs as one loop over its layers is the exception: there
    it passes through all of them, unless the stack is frozen whole.
    """
    if names is None:
        return params

    frozen = _find_frozen(names, _paths(params))

    def stop(path: jax.tree_util.KeyPath, array: Array) -> Array:
        name = path_of(path)
        if name in frozen.whole:
            return jax.lax.stop_gradient(array)
        if name not in frozen.layers:
            return array

        is_frozen = _frozen_layers(name, frozen.layers[name], len(array))
        changes = np.flatnonzero(is_frozen[1:] != is_frozen[:-1]) + 1
        parts = []
        for layers in np.split(np.arange(len(array)), changes):
            first = layers[0]
            part = array[first : first + len(layers)]
            parts.append(jax.lax.stop_gradient(part) if is_frozen[first] else part)
        return jnp.concatenate(parts)

    return jax.tree.map_with_path(stop, params)


def _paths(params: PyTree) -> list[str]:
    """Returns the paths of parameters, or of descriptions of them."""
    leaves = jax.tree.leaves_with_path(params, is_leaf=lambda x: isinstance(x, ParameterInfo))
    return [path_of(path) for path, _ in leaves]


def _find_frozen(names: str, paths: list[str]) -> _Frozen:
    """Returns what the names of ``training.freeze`` freeze, out of all paths."""
    frozen = _Frozen(set(), {})
    for each in names.split(","):
        name, chosen = _parse_frozen(each.strip(" /"))
        found = paths_with(name, paths, "training.freeze")
        if chosen is None:
            frozen.whole.update(found)
            continue
        for path in found:
            frozen.layers.setdefault(path, []).append(chosen)
    return frozen


def _parse_frozen(text: str) -> tuple[str, slice | None]:
    """Returns a name and the slice of layers that it ends with.

    >>> _parse_frozen("encoder/layers[:6]"), _parse_frozen("layers[2]"), _parse_frozen("encoder")
    (('encoder/layers', slice(None, 6, None)), ('layers', slice(2, 3, None)), ('encoder', None))
    """
    # NAME, NAME[LAYER] or NAME[FIRST:END]
    match = re.fullmatch(r"([^\[\]]*)(?:\[(\d*)(:?)(\d*)\])?", text)
    if match is None or match[0].endswith(("[]", "[:]")):
        raise UserError(
            "training.freeze: expected layers to be named as in encoder/layers[:6], layers[4:] or "
            f"layers[0]: got {text!r}"
        )

    name, first, colon, end = match.groups()
    has_layers = colon is not None
    if not has_layers:
        return name, None

    start = int(first) if first else None
    if not colon:
        layer = int(first)
        return name, slice(layer, layer + 1)
    stop = int(end) if end else None
    return name, slice(start, stop)


def _freeze_layers(
    optimizer: Optimizer,
    frozen: dict[str, list[slice]],
) -> optax.GradientTransformationExtraArgs:
    """Returns an optimizer that sees only the other layers of stacks, along their first axes."""
    inner = optax.with_extra_args_support(optimizer)

    def take(tree: PyTree) -> PyTree:
        """Returns the layers that are trained."""

        def take_layers(path: jax.tree_util.KeyPath, array: Array) -> Array:
            name = path_of(path)
            if name not in frozen:
                return array
            return array[~_frozen_layers(name, frozen[name], len(array))]

        return jax.tree.map_with_path(take_layers, tree)

    def put(trained: PyTree, tree: PyTree) -> PyTree:
        """Returns updates of all layers, which are zero in frozen ones."""

        def put_layers(path: jax.tree_util.KeyPath, array: Array, whole: Array) -> Array:
            name = path_of(path)
            if name not in frozen:
                return array
            layers = ~_frozen_layers(name, frozen[name], len(whole))
            return jnp.zeros_like(whole, array.dtype).at[layers].set(array)

        return jax.tree.map_with_path(put_layers, trained, tree)

    def init(params: PyTree) -> PyTree:
        return inner.init(take(params))

    def update(
        updates: PyTree,
        state: PyTree,
        params: PyTree = None,
        **extra: Any,
    ) -> tuple[PyTree, PyTree]:
        trained, state = inner.update(take(updates), state, take(params), **extra)
        return put(trained, updates), state

    return optax.GradientTransformationExtraArgs(init, update)


def _frozen_layers(name: str, frozen: Sequence[slice], count: int) -> Bool[np.ndarray, " layers"]:
    """Returns which layers of a stack are frozen."""
    is_frozen = np.zeros(count, bool)
    for layers in frozen:
        start = layers.start or 0
        stop = count if layers.stop is None else layers.stop
        has_no_layer = is_frozen[layers].size == 0
        if has_no_layer or stop > count:
            raise UserError(
                f"training.freeze: expected layers from 0 to {count - 1}, as {name} has: got "
                f"[{start}:{stop}]"
            )
        is_frozen[layers] = True

    if is_frozen.all():
        raise UserError(
            f"training.freeze: expected some layers of {name} to train, got all; freeze it whole, "
            "without numbers of layers"
        )
    return is_frozen
