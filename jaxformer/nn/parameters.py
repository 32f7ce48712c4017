"""Parameters with metadata, their logical axes and role, declared where they are created.

The metadata determine how a parameter is sharded, quantized and counted. ``init`` still returns
plain dictionaries of arrays; :func:`describe` returns the metadata in the same tree structure.
"""

import contextvars
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import flax.errors
import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, PyTree

from jaxformer.errors import UserError
from jaxformer.layout import as_jax_array
from jaxformer.nn.constants import holds_constants

# A "matrix" is multiplied with activations over its first axis, in the compute dtype. A "table" is
# an embedding, multiplied over its last axis in float32. A "head" makes the outputs of a task, such
# as the logits of classes, also in float32. Everything else is a "vector".
Role = Literal["matrix", "table", "head", "vector"]
# Logical name of the axis of a stack's layers.
LAYERS = "layers"


class ParameterInfo(NamedTuple):
    """Metadata of one parameter.

    Attributes:
      axes: Logical name of each axis: "vocab", "d_model", "heads", "d_ff", or None for an axis that
        is never sharded. A parameter of a stack has a leading axis :data:`LAYERS`.
      role: Use of the parameter: "matrix", "table", "head" or "vector".
      shape: Size of each axis, which :func:`describe` fills in.
    """

    axes: tuple[str | None, ...]
    role: Role
    shape: tuple[int, ...] = ()

    @property
    def summed_axis(self) -> int | None:
        """The axis that a matmul sums over, and along which quantization shares a scale."""
        if self.role not in ("matrix", "table"):
            return None

        named = [i for i, name in enumerate(self.axes) if name and name != LAYERS]
        return named[0] if self.role == "matrix" else named[-1]


# Metadata by the path of a parameter, while :func:`describe` runs.
_Recorded = dict[tuple[str, ...], ParameterInfo]
_recorded: contextvars.ContextVar[_Recorded | None] = contextvars.ContextVar(
    "recorded_parameters", default=None
)


def parameter(
    module: nn.Module,
    name: str,
    initializer: Callable[..., Array],
    shape: tuple[int, ...],
    axes: tuple[str | None, ...] = (),
    role: Role = "vector",
) -> Any:
    """Creates or returns a float32 parameter of a module, like ``module.param``.

    A parameter that is given as an array of NumPy, such as one that was read from a file, is
    returned as an array of JAX.

    Args:
      module: The module that owns the parameter, within ``setup`` or a compact method.
      name: Name of the parameter.
      initializer: Takes a key, the shape and the dtype.
      shape: Shape, without the layer axis of a stack.
      axes: Logical name of each axis; () for a small vector, which is never sharded.
      role: Use of the parameter.

    Raises:
      UserError: The module was given parameters of another shape, or the axis that a matmul sums
        over has no name.
    """
    owner = type(module).__name__
    _check_summed_axis(owner, name, axes=axes, role=role)

    recorded = _recorded.get()
    if recorded is not None:
        own_axes = axes or (None,) * len(shape)
        recorded[(*module.path, name)] = ParameterInfo(own_axes, role)

    constant = module.get_variable("params", name)
    if holds_constants(constant):
        return constant  # Its shape was checked before it became a constant.

    try:
        found = module.param(name, initializer, shape, jnp.float32)
    except flax.errors.ScopeParamShapeError:
        given = jax.tree.leaves(module.variables["params"][name])[0]
        raise UserError(
            f"{owner}: its inputs and sizes need a parameter {name!r} of shape {shape}, but it "
            f"was given one of shape {given.shape}"
        ) from None
    return jax.tree.map(as_jax_array, found)


def _check_summed_axis(
    owner: str,
    name: str,
    *,
    axes: tuple[str | None, ...],
    role: Role,
) -> None:
    """Checks that the axis that a matmul sums over has a name."""
    if role not in ("matrix", "table"):
        return

    is_matrix = role == "matrix"
    summed = axes[:1] if is_matrix else axes[-1:]
    if not any(summed):
        raise UserError(
            f"{owner}: expected a name for the {'first' if is_matrix else 'last'} axis of the "
            f"{role} {name!r}, over which it is multiplied, got axes={axes}"
        )


def describe(init: Callable[..., PyTree], *args: Any, **kwargs: Any) -> PyTree:
    """Returns a :class:`ParameterInfo` in place of each parameter, without computing anything.

    >>> from jaxformer.nn import FeedForward
    >>> info = describe(FeedForward(16).init, jax.random.key(0), jnp.ones((1, 1, 8)))
    >>> info["outer"]
    ParameterInfo(axes=('d_ff', 'd_model'), role='matrix', shape=(16, 8))

    Args:
      init: The ``init`` method of a module, or a function that calls it and returns its parameters.
        Parameters that :func:`parameter` did not create count as vectors, which are never sharded.
      *args: Arguments of ``init``, or their shapes.
      **kwargs: Further arguments.
    """
    info = describe_variables(init, *args, **kwargs)
    return info["params"] if isinstance(info, dict) and "params" in info else info


def describe_variables(init: Callable[..., PyTree], *args: Any, **kwargs: Any) -> PyTree:
    """Works as :func:`describe` does, but returns the whole structure of variables of ``init``."""
    recorded: _Recorded = {}
    token = _recorded.set(recorded)
    try:
        # A new function for every call, since JAX does not trace a function twice.
        shapes = jax.eval_shape(lambda *a: init(*a, **kwargs), *args)
    finally:
        _recorded.reset(token)

    def info(path: jax.tree_util.KeyPath, leaf: jax.ShapeDtypeStruct) -> ParameterInfo:
        names = tuple(str(getattr(key, "key", key)) for key in path)
        if names[:1] == ("params",):
            names = names[1:]

        found = recorded.get(names, ParameterInfo((None,) * leaf.ndim, "vector"))
        num_leading = leaf.ndim - len(found.axes)
        leading = (LAYERS, *(None,) * (num_leading - 1)) if num_leading else ()
        return found._replace(axes=leading + found.axes, shape=leaf.shape)

    return jax.tree_util.tree_map_with_path(info, shapes)
