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
    if jax.sharding.get_abstract_mesh().empty:
        yield
        return
    with jax.set_mesh(Mesh(np.empty((), object), ()) if mesh is None else mesh):
        yield


def has_explicit_axes(*arrays: Array) -> bool:
    """Returns whether one of the arrays is on a mesh with axes of ``AxisType.Explicit``."""
    meshes = [jax.typeof(a).sharding.mesh for a in arrays]
    return any(AxisType.Explicit in mesh.axis_types for mesh in meshes)


def as_jax_array(leaf: Any) -> Any:
    """Returns an array of NumPy as an array of JAX, and anything else unchanged."""
    return jnp.asarray(leaf) if isinstance(leaf, np.ndarray | np.generic) else leaf


def take_rows(table: Array, ids: Array) -> Array:
    """Returns ``table[ids]``, with the layout of ``ids``; NaN for ids that are out of range."""
    table = as_jax_array(table)
    # As unsigned integers, negative ids are out of range, too. JAX would index from the end.
    return map_rows(lambda rows, ids: rows.at[ids].get(mode="fill"), table, ids.astype(jnp.uint32))


def map_rows(
    function: Callable[..., PyTree], replicated: PyTree, *rows: PyTree, total: bool = False
) -> PyTree:
    """Calls ``function(replicated, *rows)``; on an explicit mesh, with each device's own rows.

    JAX cannot gather, scatter or split rows of arrays with explicit sharding. Every device gets the
    whole replicated arrays, and rows resharded along their leading axes like the first one. The
    result has the structure and layout of ``rows[0]``, or is a tuple of sums over the devices if
    ``total``.
    """
    leaves, structure = jax.tree.flatten(rows)
    first = next((jax.typeof(a).sharding for a in leaves if a.ndim), None)
    if first is None or AxisType.Explicit not in first.mesh.axis_types:
        return function(replicated, *rows)
    specs = [PartitionSpec(*first.spec[: a.ndim]) for a in leaves]
    whole = jax.tree.map(lambda _: PartitionSpec(), replicated)
    axes = tuple(
        a for axis in first.spec if axis for a in (axis if isinstance(axis, tuple) else (axis,))
    )

    def on_own_rows(replicated: PyTree, leaves: list[Array]) -> list[Array]:
        result = jax.tree.leaves(function(replicated, *jax.tree.unflatten(structure, leaves)))
        # One psum per leaf: jax 0.7 cannot transpose several if only some have a gradient.
        return [jax.lax.psum(a, axes) for a in result] if total and axes else result

    like = jax.tree.structure(rows[0])
    found = jax.shard_map(
        on_own_rows,
        mesh=first.mesh,
        in_specs=(whole, specs),
        out_specs=PartitionSpec() if total else specs[: like.num_leaves],
    )(*jax.sharding.reshard((replicated, leaves), (whole, specs)))
    return tuple(found) if total else jax.tree.unflatten(like, found)


def expand_like(array: ArrayLike, like: Array) -> Array:
    """Adds axes of size 1 in front; JAX does not with ``jax_numpy_rank_promotion="raise"``."""
    return jax.lax.expand_dims(array, range(like.ndim - np.ndim(array)))


def shard_rows_like(array: Array, *others: Array) -> Array:
    """Returns the array with rows sharded like the first of ``others`` with explicit sharding."""
    axes = (axis for other in others for axis in jax.typeof(other).sharding.spec[:1])
    axis = next((axis for axis in axes if axis is not None), None)
    return array if axis is None else jax.sharding.reshard(array, PartitionSpec(axis))


def zeros_for_rows(rows: Array, shape: tuple, dtype: DTypeLike) -> Array:
    """Returns zeros, [B, *shape], with the layout of the integers ``rows``, [B]."""
    zero = (rows * 0).astype(dtype)
    return jnp.broadcast_to(zero.reshape(-1, *[1] * len(shape)), (rows.shape[0], *shape))


def match_varying_axes(*arrays: Array) -> list[Array]:
    """Casts arrays to vary over the same mesh axes, as JAX's own operations do for gradients."""
    kinds = map(jax.typeof, arrays)
    # Called vma before jax 0.10.
    own = [k.vma if hasattr(k, "vma") else k.manual_axis_type.varying for k in kinds]
    axes = frozenset[str]().union(*own)
    return [pvary(a, tuple(sorted(axes - of_a))) for a, of_a in zip(arrays, own, strict=True)]


def pvary(x: Array, axes: str | tuple[str, ...]) -> Array:
    """Casts an array within a ``shard_map`` to vary over mesh axes."""
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(x, axes, to="varying")
    return vars(jax.lax)["pvary"](x, axes)  # Before jax 0.8.
