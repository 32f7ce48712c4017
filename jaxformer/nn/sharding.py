"""Layouts of activations over devices, by the names of their axes.

Parts know names of axes, not devices. Rules, as in :mod:`jaxformer.training.mesh`, say which name
lies along which axis of a mesh.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax.core.spmd import get_logical_axis_rules
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, PyTree, Shaped


def constrain_batch(x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """Constrains activations to the layout of the axis "batch", if there are rules for it.

    Where parameters are split too, the compiler must be told that it is parameters which have to
    be gathered, not activations.
    """
    return _pin(x, "batch", None, None)


def per_batch_shard(
    function: Callable[..., PyTree],
    table: Float[Array, "V D"],
    *rows: Shaped[Array, "R ..."],
    split_table: bool = False,
) -> PyTree:
    """Calls ``function(table, *rows)`` for each shard of the rows.

    Left to itself, the compiler gathers all rows on every device to add up the gradient of a table
    they are looked up in, and sums logits over devices. With a table for each part, there is
    nothing to gather but the table, and nothing to sum but its gradient, once.

    Args:
      function: Takes the table, and its part of each of the rows.
      table: Split over devices like any parameter; a device gathers it whole.
      *rows: Arrays that the name "batch" splits along their first axis.
      split_table: The function can do with a table that is split over the vocabulary.

    Returns:
      What the function returns, stacked: one for each part. Without rules, there is one part.
    """
    vocab = PartitionSpec.UNCONSTRAINED if split_table else None
    parts = shards_of("batch")
    if parts == 1:
        return jax.tree.map(lambda a: a[None], function(_pin(table, vocab, None), *rows))
    tables = jnp.broadcast_to(table, (parts, *table.shape))
    # Twice, so that a gradient which is whole is cut before it is summed over the parts.
    tables = _pin(_pin(tables, "batch", PartitionSpec.UNCONSTRAINED, None), "batch", vocab, None)
    split = [a.reshape(parts, -1, *a.shape[1:]) for a in rows]
    return jax.vmap(function)(tables, *(_pin(a, "batch", *[None] * (a.ndim - 1)) for a in split))


def shards_of(name: str) -> int:
    """How many parts the axes of that name are split into; 1 without rules."""
    axis = dict(get_logical_axis_rules()).get(name)
    return jax.sharding.get_abstract_mesh().shape.get(axis, 1) if axis else 1


def _pin(x: Array, *names: Any) -> Array:
    rules = dict(get_logical_axis_rules())
    if not rules:
        return x
    axes = [rules.get(name) if isinstance(name, str) else name for name in names]
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*axes))
