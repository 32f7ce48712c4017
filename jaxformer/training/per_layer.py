"""Optax transformations applied to each layer of a stack separately."""

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PyTree

from jaxformer.errors import UserError
from jaxformer.training.optimizer import path_of


def per_layer(
    optimizer: optax.GradientTransformation, *stacks: str
) -> optax.GradientTransformationExtraArgs:
    """Returns an optimizer that is applied to each layer of a stack separately.

    A :class:`~jaxformer.Stack` keeps a parameter of all its layers in one array, with a leading
    layer axis. Rules that depend on the rank, norm or mean of an array need this wrapper:
    ``optax.contrib.muon``, LAMB, Adafactor, masks by ``ndim``, and others. The optimizer, its state
    and its functions for masks and labels have a tuple of layers in place of each stack.

    Args:
      optimizer: Any gradient transformation.
      *stacks: Names of the stacks in the parameters; by default "layers", as in a ``Stack``.

    Raises:
      UserError: In ``init``: no stack has such a name, or its arrays have no common layer axis.
    """
    inner, names = optax.with_extra_args_support(optimizer), stacks or ("layers",)

    def unstack(tree: PyTree) -> PyTree:
        return _map_stacks(names, lambda stack: tuple(map(unstack, _layers(stack))), tree)

    def restack(tree: PyTree) -> PyTree:
        def stack(layers: tuple[PyTree, ...]) -> PyTree:
            return jax.tree.map(lambda *arrays: jnp.stack(arrays), *map(restack, layers))

        return _map_stacks(names, stack, tree)

    def init(params: PyTree) -> PyTree:
        layers = unstack(params)
        if jax.tree.leaves(params) and jax.tree.structure(layers) == jax.tree.structure(params):
            paths = ", ".join(path_of(path) for path, _ in jax.tree.leaves_with_path(params))
            raise UserError(
                f"per_layer: no stack is called {' or '.join(names)}; name the stacks in the paths "
                f"{paths:.400}"
            )
        return inner.init(layers)

    def update(updates: PyTree, state: PyTree, params: PyTree = None, **extra: Any) -> Any:
        extra = {  # such as the gradient and the function of a line search
            name: _after(restack, value) if callable(value) else unstack(value)
            for name, value in extra.items()
        }
        updates, state = inner.update(unstack(updates), state, unstack(params), **extra)
        return restack(updates), state

    return optax.GradientTransformationExtraArgs(init, update)


def _after(first: Callable, function: Callable) -> Callable:
    return lambda tree, **options: function(first(tree), **options)


def _map_stacks(names: tuple[str, ...], function: Callable, tree: PyTree) -> PyTree:
    def is_stack(path: jax.tree_util.KeyPath, _: Any = None) -> bool:
        return f"/{path_of(path)}".endswith(tuple(f"/{name}" for name in names))

    def apply(path: jax.tree_util.KeyPath, node: PyTree) -> PyTree:
        return function(node) if is_stack(path) else node

    return jax.tree.map_with_path(apply, tree, is_leaf=is_stack, is_leaf_takes_path=True)


def _layers(stack: PyTree) -> list[PyTree]:
    shapes = {path_of(path): np.shape(array) for path, array in jax.tree.leaves_with_path(stack)}
    # A stack whose arrays are all masked passes as one layer.
    sizes = {shape[:1] for shape in shapes.values()} or {(1,)}
    if len(sizes) > 1 or () in sizes or any(path[:1].isdigit() for path in shapes):
        raise UserError(f"per_layer: expected arrays with one layer axis in a stack, got {shapes}")
    return [jax.tree.map(operator.itemgetter(i), stack) for i in range(*sizes.pop())]
