"""Equation 1 over any source of keys and values, and the ways to compute it.

:func:`attend` spells it out. The others compute the same function: :func:`fused_attention` in one
kernel of cuDNN, :func:`windowed_attention` for keys with a window, in time and memory that grow
with the length, and :func:`chunked_attention` for long sequences, in memory that grows with the
length. :func:`attention` chooses among them.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from jaxformer.nn.backend import backend
from jaxformer.nn.dropout import RowDropout
from jaxformer.nn.keys import Keys, Tokens
from jaxformer.nn.matmul import SCORES, WEIGHTED_SUM, einsum
from jaxformer.nn.precision import at_least_float32
from jaxformer.nn.sharding import shards_of

Dropped = Callable[[Float[Array, "B H T S"]], Float[Array, "B H T S"]]


class Source(Protocol):
    """Projected keys and values, in any layout; ``dtype`` is the dtype to multiply in."""

    def scores(
        self, queries: Float[Array, "B T H K"], dtype: DTypeLike | None
    ) -> Float[Array, "B H T S"]:
        """Returns the dot products of queries and keys, at least float32."""
        ...

    def weighted_sum(
        self, weights: Float[Array, "B H T S"], dtype: DTypeLike | None
    ) -> Float[Array, "B T H V"]:
        """Returns the values, summed with weights, in their own dtype."""
        ...


class Projected(NamedTuple):
    """Keys and values of whole sequences."""

    keys: Float[Array, "B S H K"]
    values: Float[Array, "B S H V"]

    def scores(
        self, queries: Float[Array, "B T H K"], dtype: DTypeLike | None
    ) -> Float[Array, "B H T S"]:
        """Returns the dot products of queries and keys."""
        return einsum(SCORES, queries, self.keys, dtype)

    def weighted_sum(
        self, weights: Float[Array, "B H T S"], dtype: DTypeLike | None
    ) -> Float[Array, "B T H V"]:
        """Returns the values, summed with weights."""
        values = self.values
        return einsum(WEIGHTED_SUM, weights.astype(values.dtype), values, dtype).astype(
            values.dtype
        )


def attend(
    queries: Float[Array, "B T H K"],
    source: Source,
    keys: Keys,
    dropout: Dropped | None = None,
    dtype: DTypeLike | None = None,
) -> tuple[Float[Array, "B T H V"], Float[Array, "B H T S"]]:
    """Returns softmax(Q K^T / sqrt(d_k)) V (equation 1), and the weights before dropout.

    A query that may attend nowhere, which is padding, gets the average of all values; nothing may
    depend on it.

    Args:
      queries: Q.
      source: K and V.
      keys: What each query may see.
      dropout: Applied to the weights that multiply the values; no dropout when None.
      dtype: Dtype to multiply in; the dtype of the arrays when None.
    """
    scores = source.scores(queries, dtype) / math.sqrt(queries.shape[-1])
    weights = _softmax(scores, keys.allowed(), keys.added())
    kept = weights if dropout is None else dropout(weights)
    return source.weighted_sum(kept, dtype), weights


def _softmax(
    scores: Float[Array, "B H T S"],
    allowed: Bool[Array, "#B #H #T #S"] | None,
    added: Float[Array, "#B #H T S"] | None = None,
) -> Float[Array, "B H T S"]:
    if added is not None:
        scores = scores + added.astype(scores.dtype)
    if allowed is not None:
        # The lowest float gives the same weights as -inf, exactly 0, but no NaN in padding.
        scores = jnp.where(allowed, scores, jnp.finfo(scores.dtype).min)
    return jax.nn.softmax(scores, axis=-1)


def attention(
    queries: Float[Array, "B T H K"],
    source: Projected,
    keys: Keys,
    dropout: RowDropout | None = None,
    dtype: DTypeLike | None = None,
) -> Float[Array, "B T H V"]:
    """Computes equation 1 over whole sequences, in the way that suits their length."""
    length, seen = queries.shape[1], source.keys.shape[1]
    known = isinstance(length, int) and isinstance(seen, int)  # Not in an export for any length.
    is_long = known and length == seen and seen > 4 * (keys.window or seen)
    if is_long and keys.mask is None:
        return windowed_attention(queries, source, keys, dropout, dtype)
    if dropout is None and has_fused_kernel(queries, source.values, keys):
        return fused_attention(queries, source, keys)
    if known and length * seen > backend().scores_per_chunk:
        return chunked_attention(queries, source, keys, dropout, dtype)
    return attend(queries, source, keys, dropout, dtype)[0]


def windowed_attention(
    queries: Float[Array, "B T H K"],
    source: Projected,
    keys: Keys,
    dropout: RowDropout | None = None,
    dtype: DTypeLike | None = None,
) -> Float[Array, "B T H V"]:
    """Computes self-attention with a window, in time and memory O(window * T).

    The sequence is split into blocks of one window. A block attends to itself, to the block before
    it and, unless the keys are causal, to the one after it.

    Args:
      queries: Q.
      source: K and V of the same tokens.
      keys: Keys with a window, and without a mask.
      dropout: Applied to the weights.
      dtype: Dtype to multiply in.
    """
    size, first = keys.window or 1, keys.global_tokens
    batch, length = queries.shape[:2]
    blocks = -(-length // size)
    sides = (1, 0) if keys.causal else (1, 1)

    def own(x: Array) -> Array:
        """Splits tokens into blocks: [B, T, ...] to [B, blocks, size, ...]."""
        padded = _pad(x, 1, 0, blocks * size - length)
        return padded.reshape(x.shape[0], blocks, size, *x.shape[2:])

    def near(x: Array) -> Array:
        """Returns the tokens that each block sees: the global ones, and its neighborhood."""
        end = size * (blocks + sides[1]) - length
        padded = _pad(x, 1, sides[0] * size, end)
        split = padded.reshape(x.shape[0], blocks + sum(sides), size, *x.shape[2:])
        parts = [split[:, i : i + blocks] for i in range(1 + sum(sides))]
        if first:
            shape = (x.shape[0], blocks, first, *x.shape[2:])
            parts.insert(0, jnp.broadcast_to(x[:, None, :first], shape))
        return jnp.concatenate(parts, axis=2)

    there, tokens = near(jnp.ones((1, length), bool)), jax.tree.map(near, keys.keys)
    if first:  # A global token counts once, among the global ones.
        is_near = (jnp.arange(there.shape[2]) >= first)[None, None]
        there &= ~(is_near & (tokens.index < first))
    blocked = dataclasses.replace(
        keys,
        queries=jax.tree.map(own, keys.queries),
        keys=tokens,
        mask=there[:, :, None, None],
        slots=None,
    )

    def block(queries: Array, source: Projected, keys: Keys, row_ids: Any) -> Array:
        drop = None if dropout is None else dataclasses.replace(dropout, row_ids=row_ids)
        return attend(queries, source, keys, drop, dtype)[0]

    row_ids = None
    if dropout is not None:
        row_ids = dropout.row_ids[:, None] * blocks + jnp.arange(blocks)[None]
    arguments = (own(queries), jax.tree.map(near, source), blocked, row_ids)
    result = jax.vmap(block, in_axes=1, out_axes=1)(*arguments)
    result = result.reshape(batch, blocks * size, *result.shape[3:])[:, :length]
    if first:
        seers = dataclasses.replace(
            keys, queries=jax.tree.map(lambda a: a[:, :first], keys.queries)
        )
        others = attend(queries[:, :first], source, seers, dropout, dtype)[0]
        result = jnp.concatenate([others, result[:, first:]], axis=1)
    return result


def chunked_attention(
    queries: Float[Array, "B T H K"],
    source: Projected,
    keys: Keys,
    dropout: RowDropout | None = None,
    dtype: DTypeLike | None = None,
) -> Float[Array, "B T H V"]:
    """Computes equation 1 for a few queries at a time, in memory O(S).

    The backward pass computes the weights again. Masks and biases are made within each chunk.
    """
    length, seen = queries.shape[1], source.keys.shape[1]
    size = max(1, min(length, backend().scores_per_chunk // (8 * seen)))
    chunks = -(-length // size)

    def split(x: Array, axis: int = 1) -> Array:
        """Moves chunks of an axis to the front: [B, T, ...] to [chunks, B, size, ...]."""
        x = _pad(x, axis, 0, chunks * size - length)
        return jnp.moveaxis(x.reshape(*x.shape[:axis], chunks, size, *x.shape[axis + 1 :]), axis, 0)

    mask = keys.mask
    own_rows = None if mask is None or mask.shape[2] == 1 else split(mask, 2)
    parts: dict[str, Any] = {
        "number": jnp.arange(chunks),
        "queries": split(queries),
        "tokens": jax.tree.map(split, keys.queries),
        "mask": own_rows,
    }

    @jax.checkpoint
    def one(part: dict[str, Any]) -> Array:
        rows = mask if own_rows is None else part["mask"]
        own = dataclasses.replace(keys, queries=part["tokens"], mask=rows)
        drop = None
        if dropout is not None:
            row_ids = dropout.row_ids * chunks + part["number"]
            drop = dataclasses.replace(dropout, row_ids=row_ids)
        return attend(part["queries"], source, own, drop, dtype)[0]

    result = jnp.moveaxis(jax.lax.map(one, parts), 0, 1)
    return result.reshape(result.shape[0], chunks * size, *result.shape[3:])[:, :length]


def _pad(x: Array, axis: int, before: int, after: int) -> Array:
    return jnp.pad(x, [(before, after) if i == axis else (0, 0) for i in range(x.ndim)])


def fused_attention(
    queries: Float[Array, "B T H K"], source: Projected, keys: Keys
) -> Float[Array, "B T H V"]:
    """Computes :func:`attend` in one cuDNN kernel, without weights in memory.

    Requires that :func:`has_fused_kernel` is True.
    """
    mask = keys.allowed()
    if mask is not None:  # The kernel returns NaN for queries that may attend nowhere.
        mask = mask | ~mask.any(axis=-1, keepdims=True)
    return jax.nn.dot_product_attention(
        queries, source.keys, source.values, mask=mask, implementation="cudnn"
    )


def has_fused_kernel(
    queries: Float[Array, "B T H K"], values: Float[Array, "B S H V"], keys: Keys
) -> bool:
    """Returns whether :func:`fused_attention` supports these arrays and this device.

    It requires an NVIDIA GPU (Ampere or later), bfloat16, d_k = d_v, a multiple of 8 up to 128,
    even lengths, and keys without a bias. Neither heads nor the batch may be sharded, which has not
    been tried.
    """
    return (
        backend().fused_attention
        and keys.bias is None
        and queries.dtype == values.dtype == jnp.bfloat16
        and queries.shape[-1] == values.shape[-1]
        and queries.shape[-1] <= 128
        and queries.shape[-1] % 8 == queries.shape[1] % 2 == values.shape[1] % 2 == 0
        and shards_of("heads") == shards_of("batch") == 1
    )


def dot_product_attention(
    queries: Float[Array, "B T H K"],
    keys: Float[Array, "B S H K"],
    values: Float[Array, "B S H V"],
    mask: Bool[Array, "#B #H #T #S"] | None = None,
    dtype: DTypeLike | None = None,
) -> tuple[Float[Array, "B T H V"], Float[Array, "B H T S"]]:
    """Returns softmax(Q K^T / sqrt(d_k)) V (equation 1) and the attention weights, of plain arrays.

    Args:
      queries: Q.
      keys: K.
      values: V.
      mask: True where a query may attend; everywhere when None. A query that may attend nowhere
        gets the average of all values.
      dtype: Dtype to multiply in; the dtype of the arrays when None.

    Returns:
      The attended values in the dtype of ``values``, and the weights, float32 or float64.
    """
    seen = Keys(Tokens.of(queries.shape[1]), Tokens.of(keys.shape[1]), mask)
    return attend(queries, Projected(keys, values), seen, dtype=dtype)


def additive_attention(
    queries: Float[Array, "B T H K"],
    keys: Float[Array, "B S H K"],
    values: Float[Array, "B S H V"],
    mask: Bool[Array, "#B #H #T #S"],
    vector: Float[Array, "H K"],
) -> tuple[Float[Array, "B T H V"], Float[Array, "B H T S"]]:
    """Returns additive attention (section 3.2.1; Bahdanau et al. 2015) and its weights.

    No model here uses it; it is for comparison. The mask and the results are as for
    :func:`dot_product_attention`.

    Args:
      queries: Queries, already multiplied by the network's matrix for queries.
      keys: Keys, already multiplied by the network's matrix for keys.
      values: V.
      mask: True where a query may attend.
      vector: Weights of the network's output, for each head.
    """
    weights = _softmax(additive_scores(queries, keys, vector), mask)
    return Projected(keys, values).weighted_sum(weights, None), weights


def additive_scores(
    queries: Float[Array, "B T H K"],
    keys: Float[Array, "B S H K"],
    vector: Float[Array, "H K"],
) -> Float[Array, "B H T S"]:
    """Returns scores ``vector . tanh(query + key)``, of a network with K hidden units.

    There is no matmul to use: the B T S H K hidden units are computed, though not stored.
    """
    dtype = at_least_float32(queries, keys, vector)
    queries, keys, vector = (a.astype(dtype) for a in (queries, keys, vector))
    hidden = jnp.tanh(queries[:, :, None] + keys[:, None])
    return jnp.einsum("btshk,hk->bhts", hidden, vector)
