"""Embeddings and output logits (section 3.4)."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxformer.layout import has_explicit_axes, take_rows
from jaxformer.nn.arguments import check_ids, check_length
from jaxformer.nn.matmul import matmul_nt
from jaxformer.nn.positions import FixedPositions
from jaxformer.nn.precision import Int8Matrix, quantize_rows
from jaxformer.nn.sharding import per_batch_shard


def embed(
    table: Float[Array, "V D"] | Int8Matrix, ids: Int[Array, "*rows"]
) -> Float[Array, "*rows D"]:
    """Returns rows of a table, float32; NaN for ids that are out of range."""
    if isinstance(table, Int8Matrix):
        return take_rows(table.values, ids) * take_rows(table.scale, ids)
    if has_explicit_axes(ids):
        return take_rows(table, ids).astype(jnp.float32)
    # Every device gathers the whole table: XLA of jax 0.10 crashes on lookups in a sharded table.
    found = per_batch_shard(take_rows, table, ids)
    return found.reshape(*ids.shape, table.shape[1]).astype(jnp.float32)


def output_logits(
    x: Float[Array, "*rows D"],
    table: Float[Array, "V D"] | Int8Matrix,
    bias: Float[Array, " V"] | None = None,
) -> Float[Array, "*rows V"]:
    """Returns logits, the dot products of x with every row of a table, plus a bias, float32.

    Logits are float32 even where layers compute in bfloat16, because they often decide between
    words of similar probability and take little of the time.
    """
    if not isinstance(table, Int8Matrix):
        logits = matmul_nt(x.astype(jnp.float32), table.astype(jnp.float32))
        return logits if bias is None else logits + bias
    inputs = quantize_rows(x.astype(jnp.float32), -1)
    # Not a matmul with the transpose, which XLA would convert to int32 and then transpose.
    sums = matmul_nt(inputs.values, table.values, jnp.int32)
    logits = sums.astype(jnp.float32) * (inputs.scale * table.scale[:, 0])
    return logits if bias is None else logits + bias


def embed_tokens(
    table: Float[Array, "V D"] | Int8Matrix,
    tokens: Int[Array, "B T"],
    encodings: Float[Array, "M D"] | Float[np.ndarray, "M D"] | FixedPositions,
    positions: Int[Array, "#B T"] | None = None,
    capacity: int | None = None,
) -> Float[Array, "B T D"]:
    """Returns embeddings times sqrt(d_model) (section 3.4) plus positions (section 3.5), float32.

    Args:
      table: The embedding.
      tokens: Token ids.
      encodings: Encoding of every position, sinusoidal or learned.
      positions: Position of every token; 0, 1, ... when None.
      capacity: Number that all positions are less than; the number of encodings when None.

    Raises:
      UserError: A sequence is longer than ``encodings``, or an id is not in the table.
    """
    check_ids("tokens", tokens, jax.tree.leaves(table)[0].shape[0])
    if positions is None:
        check_length("sequence", tokens.shape[1], len(encodings))
        encoding = jnp.asarray(encodings[: tokens.shape[1]])
    else:
        if isinstance(encodings, FixedPositions):
            encodings = encodings[:capacity]
        encoding = jnp.asarray(encodings)[positions]
    embedded = embed(table, tokens)
    return embedded * math.sqrt(embedded.shape[-1]) + encoding
