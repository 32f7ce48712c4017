"""The layout of an array as part of its type: varying and explicit mesh axes.

JAX tracks both during tracing. Its own operations propagate them; these functions do so for ours.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, PyTree


def has_explicit_axes(*arrays: Array) -> bool:
    """Returns whether one of the arrays is on a mesh with axes of ``AxisType.Explicit``."""
    meshes = [jax.typeof(a).sharding.mesh for a in arrays]
    return any(AxisType.Explicit in mesh.axis_types for mesh in meshes)


def take_rows(table: Array, ids: Array) -> Array:
    """Returns ``table[ids]``, with the layout of ``ids``; NaN for ids that are out of range."""
    if has_explicit_axes(ids):
        return map_explicit_rows(_take, table, ids)
    return _take(table, ids)


def _take(table: Array, ids: Array) -> Array:
    # As unsigned integers negative ids are out of range too; JAX would index from the end.
    return table.at[ids.astype(jnp.uint32)].get(mode="fill")


def map_explicit_rows(
    function: Callable[..., PyTree], replicated: Array, *rows: Array, total: bool = False
) -> PyTree:
    """Calls ``function(replicated, *rows)`` on each device's own rows of an explicit mesh.

    JAX cannot look up or split rows of arrays whose layout is explicit.

    Args:
      function: Takes the replicated array and rows.
      replicated: An array that every device gets whole; gathered if it is sharded.
      *rows: Arrays whose leading axes are sharded like the first array's.
      total: Sum the results over the devices; otherwise results have the leading axes of the rows.
    """
    mesh = jax.typeof(rows[0]).sharding.mesh
    spec = jax.typeof(rows[0]).sharding.spec
    rows = tuple(jax.sharding.reshard(a, _leading(spec, a.ndim)) for a in rows)
    replicated = jax.sharding.reshard(replicated, PartitionSpec())
    axes = tuple(a for axis in spec if axis for a in (axis if isinstance(axis, tuple) else (axis,)))

    def on_own_rows(replicated: Array, *rows: Array) -> PyTree:
        result = function(replicated, *rows)
        # One psum per leaf: jax 0.7 cannot transpose one of several leaves if only some of them
        # have a gradient.
        return jax.tree.map(lambda a: jax.lax.psum(a, axes), result) if total and axes else result

    return jax.shard_map(
        on_own_rows,
        mesh=mesh,
        in_specs=(PartitionSpec(), *(_leading(spec, a.ndim) for a in rows)),
        out_specs=PartitionSpec() if total else PartitionSpec(*spec),
    )(replicated, *rows)


def zeros_beside(rows: Array, shape: tuple, dtype: DTypeLike) -> Array:
    """Returns zeros, [B, *shape], with the layout of the integers ``rows``, [B]."""
    zero = (rows * 0).astype(dtype)
    return jnp.broadcast_to(zero.reshape(-1, *[1] * len(shape)), (rows.shape[0], *shape))


def vary_alike(*arrays: Array) -> list[Array]:
    """Casts arrays within a ``shard_map`` to vary over the same mesh axes.

    JAX does so for the operands of its own operations, so that gradients are summed over the axes
    that a parameter does not vary over.
    """
    axes = frozenset[str]().union(*map(_varying_axes, arrays))
    return [pvary(a, tuple(sorted(axes - _varying_axes(a)))) for a in arrays]


def pvary(x: Array, axes: str | tuple[str, ...]) -> Array:
    """Casts an array within a ``shard_map`` to vary over mesh axes."""
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(x, axes, to="varying")
    return vars(jax.lax)["pvary"](x, axes)  # Before jax 0.8.


def _varying_axes(x: Array) -> frozenset[str]:
    kind = jax.typeof(x)
    # Called vma before jax 0.10.
    return kind.vma if hasattr(kind, "vma") else kind.manual_axis_type.varying


def _leading(spec: PartitionSpec, ndim: int) -> PartitionSpec:
    return PartitionSpec(*spec[:ndim])
