"""Sharding constraints on activations, by the logical names of their axes.

Layers know names of axes, not devices. The rules of :mod:`jaxformer.training.placement` map them.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax.core.spmd import get_logical_axis_rules
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, PyTree, Shaped


def constrain_batch(x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """Constrains activations to be sharded over the axis "batch" only, if there are rules for it.

    Where parameters are sharded too, XLA must gather parameters and not activations.
    """
    return shard(x, "batch", None, None)


def per_batch_shard(
    function: Callable[..., PyTree],
    table: Float[Array, "V D"],
    *rows: Shaped[Array, "R ..."],
    split_table: bool = False,
) -> PyTree:
    """Calls ``function(table, *rows)`` for each shard of the rows, and stacks the results.

    By default, XLA gathers all rows on every device to sum the gradient of a table, and sums logits
    over devices. With a copy of the table per shard, it only gathers the table, and sums its
    gradient once. With ``split_table``, the table may stay sharded over the vocabulary.

    The rows are sharded over "batch" along their first axis. Without rules, there is one shard.
    """
    unconstrained = PartitionSpec.UNCONSTRAINED
    vocab = unconstrained if split_table else None
    shards = num_shards("batch")
    if shards == 1:
        result = function(shard(table, vocab, None), *rows)
        return jax.tree.map(lambda a: a[None], result)

    tables = jnp.broadcast_to(table, (shards, *table.shape))
    # Two constraints, so that a whole gradient is sharded before it is summed over the shards.
    tables = shard(tables, "batch", unconstrained, None)
    tables = shard(tables, "batch", vocab, None)

    def constrain(a: Array) -> Array:
        others = [None] * (a.ndim - 1)
        return shard(a, "batch", *others)

    # A shard of the rows for each copy of the table.
    split = [a.reshape(shards, -1, *a.shape[1:]) for a in rows]
    return jax.vmap(function)(tables, *map(constrain, split))


def num_shards(name: str) -> int:
    """Returns the number of shards of axes with this name; 1 without rules."""
    axis = dict(get_logical_axis_rules()).get(name)
    if not axis:
        return 1
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.shape.get(axis, 1)


def shard(x: Array, *names: Any) -> Array:
    """Constrains an array to be sharded by the names of its axes, if there are rules for them.

    None is an axis that is whole on every device. UNCONSTRAINED leaves an axis to the compiler.
    """
    rules = dict(get_logical_axis_rules())
    if not rules:
        return x

    def axis(name: Any) -> Any:
        """Returns the axis of the mesh; None and UNCONSTRAINED stand for themselves."""
        return rules.get(name) if isinstance(name, str) else name

    spec = PartitionSpec(*map(axis, names))
    return jax.lax.with_sharding_constraint(x, spec)
