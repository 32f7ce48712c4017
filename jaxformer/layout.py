"""The layout of an array as part of its type: varying and explicit mesh axes.

JAX tracks both during tracing. Its own operations propagate them; these functions do so for ours.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, PartitionSpec
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, PyTree


@contextlib.contextmanager
def global_mesh(mesh: Mesh | None) -> Iterator[None]:
    """Replaces the global mesh of ``jax.set_mesh``, if there is one, by another or none."""
    now = jax.sharding.get_abstract_mesh()
    if now.empty:
        yield
        return

    if mesh is None:
        no_devices = np.empty((), object)
        mesh = Mesh(no_devices, ())
    with jax.set_mesh(mesh):
        yield


def has_explicit_axes(*arrays: Array) -> bool:
    """Returns whether one of the arrays is on a mesh with axes of ``AxisType.Explicit``."""
    for array in arrays:
        sharding = jax.typeof(array).sharding
        if AxisType.Explicit in sharding.mesh.axis_types:
            return True
    return False


def as_jax_array(leaf: Any) -> Any:
    """Returns an array of NumPy as an array of JAX, and anything else unchanged."""
    if isinstance(leaf, np.ndarray | np.generic):
        return jnp.asarray(leaf)
    return leaf


def take_rows(table: Array, ids: Array) -> Array:
    """Returns ``table[ids]``, with the layout of ``ids``; NaN for ids that are out of range."""
    table = as_jax_array(table)

    def take(table: Array, ids: Array) -> Array:
        return table.at[ids].get(mode="fill")

    # As unsigned integers, negative ids are out of range, too. JAX would index from the end.
    ids = ids.astype(jnp.uint32)
    return map_rows(take, table, ids)


def map_rows(
    function: Callable[..., PyTree],
    replicated: PyTree,
    *rows: PyTree,
    total: bool = False,
) -> PyTree:
    """Calls ``function(replicated, *rows)``; on an explicit mesh, with each device's own rows.

    JAX cannot gather, scatter or split rows of arrays with explicit sharding. Every device gets the
    whole replicated arrays, and rows resharded along their leading axes like the first one. The
    result has the structure and layout of ``rows[0]``, or is a tuple of sums over the devices if
    ``total``.
    """
    leaves, structure = jax.tree.flatten(rows)
    arrays = [leaf for leaf in leaves if leaf.ndim]
    if not arrays or not has_explicit_axes(arrays[0]):
        return function(replicated, *rows)

    sharding = jax.typeof(arrays[0]).sharding
    axes = _axes_of(sharding.spec)
    replicated_specs = jax.tree.map(lambda _: PartitionSpec(), replicated)
    row_specs = []
    for leaf in leaves:
        row_axes = sharding.spec[: leaf.ndim]
        row_specs.append(PartitionSpec(*row_axes))

    result_structure = jax.tree.structure(rows[0])
    result_specs = row_specs[: result_structure.num_leaves]
    if total:
        result_specs = PartitionSpec()

    def on_own_rows(replicated: PyTree, leaves: list[Array]) -> list[Array]:
        own_rows = jax.tree.unflatten(structure, leaves)
        result = function(replicated, *own_rows)
        results = jax.tree.leaves(result)
        if not total or not axes:
            return results

        # One psum per leaf: jax 0.7 cannot transpose several if only some have a gradient.
        return [jax.lax.psum(result, axes) for result in results]

    sharded_function = jax.shard_map(
        on_own_rows,
        mesh=sharding.mesh,
        in_specs=(replicated_specs, row_specs),
        out_specs=result_specs,
    )
    replicated, leaves = jax.sharding.reshard(
        (replicated, leaves),
        (replicated_specs, row_specs),
    )
    results = sharded_function(replicated, leaves)
    if total:
        return tuple(results)
    return jax.tree.unflatten(result_structure, results)


def _axes_of(spec: PartitionSpec) -> tuple[str, ...]:
    """Returns the names of all mesh axes in a spec."""
    axes = []
    for axis in spec:
        if isinstance(axis, tuple):
            axes += axis
        elif axis:
            axes.append(axis)
    return tuple(axes)


def expand_like(array: ArrayLike, like: Array) -> Array:
    """Adds axes of size 1 in front; JAX does not with ``jax_numpy_rank_promotion="raise"``."""
    num_missing = like.ndim - np.ndim(array)
    return jax.lax.expand_dims(array, range(num_missing))


def shard_rows_like(array: Array, *others: Array) -> Array:
    """Returns the array with rows sharded like the first of ``others`` with explicit sharding."""
    for other in others:
        spec = jax.typeof(other).sharding.spec
        first_axis = spec[0] if spec else None
        if first_axis is not None:
            return jax.sharding.reshard(array, PartitionSpec(first_axis))
    return array


def zeros_for_rows(rows: Array, shape: tuple, dtype: DTypeLike) -> Array:
    """Returns zeros, [B, *shape], with the layout of the integers ``rows``, [B]."""
    num_rows = rows.shape[0]
    ones = [1] * len(shape)

    # Computed from the rows, since zeros alone have no layout.
    zero = (rows * 0).astype(dtype)
    zero = zero.reshape(-1, *ones)
    return jnp.broadcast_to(zero, (num_rows, *shape))


def match_varying_axes(*arrays: Array) -> list[Array]:
    """Casts arrays to vary over the same mesh axes, as JAX's own operations do for gradients."""
    axes_of_arrays = [_varying_axes(array) for array in arrays]
    all_axes = frozenset[str]().union(*axes_of_arrays)

    matched = []
    for array, axes in zip(arrays, axes_of_arrays, strict=True):
        missing = sorted(all_axes - axes)
        varying = pvary(array, tuple(missing))
        matched.append(varying)
    return matched


def _varying_axes(array: Array) -> frozenset[str]:
    """Returns the mesh axes that an array within a ``shard_map`` varies over."""
    kind = jax.typeof(array)
    if hasattr(kind, "vma"):  # before jax 0.10
        return kind.vma
    return kind.manual_axis_type.varying


def pvary(x: Array, axes: str | tuple[str, ...]) -> Array:
    """Casts an array within a ``shard_map`` to vary over mesh axes."""
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(x, axes, to="varying")
    cast = vars(jax.lax)["pvary"]  # before jax 0.8
    return cast(x, axes)
