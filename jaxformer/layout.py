"""Layout as part of an array's type: mesh axes that it varies over, or is explicitly split over.

Jax tracks both while it traces. Its own operations take care of them; these functions do for ours.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, PyTree


def has_explicit_axes(*arrays: Array) -> bool:
    """Returns whether one of the arrays lies on a mesh with axes of ``AxisType.Explicit``."""
    meshes = [jax.typeof(a).sharding.mesh for a in arrays]
    return any(AxisType.Explicit in mesh.axis_types for mesh in meshes)


def take_rows(table: Array, ids: Array) -> Array:
    """Returns ``table[ids]``, laid out as ``ids`` are; NaN for ids that the table does not have."""
    if has_explicit_axes(ids):
        return map_explicit_rows(_take, table, ids)
    return _take(table, ids)


def _take(table: Array, ids: Array) -> Array:
    # Negative ids are as wrong as ids that are too large; indexing would count them from the end.
    return table.at[ids.astype(jnp.uint32)].get(mode="fill")


def map_explicit_rows(
    function: Callable[..., PyTree], whole: Array, *rows: Array, total: bool = False
) -> PyTree:
    """Calls ``function(whole, *rows)`` on each device's own rows of an explicit mesh.

    For what jax cannot do with arrays whose layout is explicit: lookups, cutting rows into chunks.

    Args:
      function: Takes an array that every device has whole, and rows.
      whole: Gathered if it is split.
      *rows: Arrays whose leading axes, those of the first one, are split alike.
      total: Sum what the function returns over the devices; else it has the rows' leading axes.
    """
    mesh = jax.typeof(rows[0]).sharding.mesh
    spec = jax.typeof(rows[0]).sharding.spec
    rows = tuple(jax.sharding.reshard(a, _leading(spec, a.ndim)) for a in rows)
    whole = jax.sharding.reshard(whole, PartitionSpec())
    axes = tuple(a for axis in spec if axis for a in (axis if isinstance(axis, tuple) else (axis,)))

    def on_own_rows(whole: Array, *rows: Array) -> PyTree:
        result = function(whole, *rows)
        return jax.lax.psum(result, axes) if total and axes else result

    return jax.shard_map(
        on_own_rows,
        mesh=mesh,
        in_specs=(PartitionSpec(), *(_leading(spec, a.ndim) for a in rows)),
        out_specs=PartitionSpec() if total else PartitionSpec(*spec),
    )(whole, *rows)


def zeros_beside(rows: Array, shape: tuple, dtype: DTypeLike) -> Array:
    """Returns zeros, [B, *shape], that lie and vary over a mesh as integer ``rows``, [B], do."""
    zero = (rows * 0).astype(dtype)
    return jnp.broadcast_to(zero.reshape(-1, *[1] * len(shape)), (rows.shape[0], *shape))


def vary_alike(*arrays: Array) -> list[Array]:
    """Casts arrays within a ``shard_map`` to vary over the same mesh axes.

    Jax does so for the operands of its own operations, so that gradients are summed over the axes
    that a parameter does not vary over.
    """
    axes = frozenset[str]().union(*map(_varying_axes, arrays))
    return [pvary(a, tuple(sorted(axes - _varying_axes(a)))) for a in arrays]


def pvary(x: Array, axes: str | tuple[str, ...]) -> Array:
    """Casts an array to vary over mesh axes of a ``shard_map``."""
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(x, axes, to="varying")
    return vars(jax.lax)["pvary"](x, axes)  # its name before jax 0.8


def _varying_axes(x: Array) -> frozenset[str]:
    kind = jax.typeof(x)
    # Called vma before jax 0.10.
    return kind.vma if hasattr(kind, "vma") else kind.manual_axis_type.varying


def _leading(spec: PartitionSpec, ndim: int) -> PartitionSpec:
    return PartitionSpec(*spec[:ndim])
