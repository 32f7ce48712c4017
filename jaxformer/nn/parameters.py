"""Parameters, each with its facts where it is created: logical axes and role.

The facts say how a parameter is laid out over devices, quantized and counted. ``init`` still
returns plain dictionaries of arrays; :func:`describe` returns the facts in the same tree.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import flax.errors
import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, PyTree

from jaxformer.errors import UserError

# A "matrix" is multiplied with activations, over its first axis, in the compute dtype. A "table" is
# embedded from, or multiplied with over its last axis, in float32. A "vector" is all else.
Role = Literal["matrix", "table", "vector"]


class ParameterInfo(NamedTuple):
    """Facts about one parameter.

    Attributes:
      axes: The logical name of every axis, "vocab", "d_model", "heads" or "d_ff", or None for an
        axis that is never split over devices. A parameter of a stack leads with its layer axis.
      role: How the parameter is used.
    """

    axes: tuple[str | None, ...]
    role: Role

    @property
    def summed_axis(self) -> int | None:
        """The axis that a matmul sums over, which quantization keeps no scale for."""
        if self.role == "vector":
            return None
        named = [i for i, name in enumerate(self.axes) if name]
        return named[0] if self.role == "matrix" else named[-1]


_facts: contextvars.ContextVar[dict[tuple[str, ...], ParameterInfo] | None] = (
    contextvars.ContextVar("facts", default=None)
)


def parameter(
    module: nn.Module,
    name: str,
    initializer: Callable[..., Array],
    shape: tuple[int, ...],
    axes: tuple[str | None, ...] = (),
    role: Role = "vector",
) -> Any:
    """Creates or returns a float32 parameter of a module, as ``module.param`` does.

    Args:
      module: The module that owns the parameter, within ``setup`` or a compact method.
      name: Name of the parameter.
      initializer: Takes a key, the shape and the dtype.
      shape: Shape, without the layer axis of a stack.
      axes: Logical name of each axis; () for a small vector, which no mesh splits.
      role: How the parameter is used.

    Raises:
      UserError: The module was given parameters of another shape.
    """
    facts = _facts.get()
    if facts is not None:
        facts[(*module.path, name)] = ParameterInfo(axes, role)
    try:
        return module.param(name, initializer, shape, jnp.float32)
    except flax.errors.ScopeParamShapeError:
        found = jax.tree.leaves(module.variables["params"][name])[0].shape
        raise UserError(
            f"{type(module).__name__}: its inputs and sizes need a parameter {name!r} of shape "
            f"{shape}, but it was given one of shape {found}"
        ) from None


def describe(init: Callable[..., PyTree], *args: Any, **kwargs: Any) -> PyTree:
    """Returns a :class:`ParameterInfo` in the place of each parameter; nothing is computed.

    >>> from jaxformer.nn import FeedForward
    >>> info = describe(FeedForward(16).init, jax.random.key(0), jnp.ones((1, 1, 8)))
    >>> info["outer"]
    ParameterInfo(axes=('d_ff', 'd_model'), role='matrix')

    Args:
      init: The method of a module, or a function that calls it and returns its parameters. What
        was not created by :func:`parameter` is a vector, which no mesh splits.
      *args: Its arguments, or their shapes.
      **kwargs: Further arguments.
    """
    with _recording() as facts:
        # A new function at every call: jax would not trace a known one again.
        shapes = jax.eval_shape(lambda *a: init(*a, **kwargs), *args)
    if isinstance(shapes, dict) and "params" in shapes:
        shapes = shapes["params"]

    def info(path: jax.tree_util.KeyPath, leaf: jax.ShapeDtypeStruct) -> ParameterInfo:
        names = tuple(str(getattr(key, "key", key)) for key in path)
        found = facts.get(names, ParameterInfo((), "vector"))
        return found._replace(axes=(None,) * (leaf.ndim - len(found.axes)) + found.axes)

    return jax.tree_util.tree_map_with_path(info, shapes)


@contextlib.contextmanager
def _recording() -> Iterator[dict[tuple[str, ...], ParameterInfo]]:
    facts: dict[tuple[str, ...], ParameterInfo] = {}
    token = _facts.set(facts)
    try:
        yield facts
    finally:
        _facts.reset(token)
