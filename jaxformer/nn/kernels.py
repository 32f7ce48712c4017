"""Equation 1 over any source of keys and values, and efficient ways to compute it.

:func:`attend` is the plain implementation. :func:`windowed_attention`, :func:`chunked_attention`
and :func:`fused_attention` compute the same in less time or memory; :func:`attention` chooses.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Protocol, TypeAlias, runtime_checkable

import flax.struct
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from jaxformer.fields import fields_given
from jaxformer.nn.backend import backend
from jaxformer.nn.dropout import RowDropout
from jaxformer.nn.keys import Keys, Tokens
from jaxformer.nn.matmul import SCORES, WEIGHTED_SUM, einsum
from jaxformer.nn.precision import at_least_float32
from jaxformer.nn.sharding import num_shards

Queries: TypeAlias = Float[Array, "B T H K"]

# Fields of Keys that only select the keys that a query sees, or where a cache writes them.
_MASKING = {"queries", "keys", "mask", "slots", "causal", "window", "global_tokens", "scale"}


@runtime_checkable
class KeyValueSource(Protocol):
    """Projected keys and values in any layout, such as a cache."""

    @property
    def num_heads(self) -> int:
        """Number of heads of the keys and values."""
        ...

    def scores(self, queries: Float[Array, "B T H K"]) -> Float[Array, "B H T S"]:
        """Returns the dot products of queries and keys, at least float32."""
        ...

    def weighted_sum(self, weights: Float[Array, "B H T S"]) -> Float[Array, "B T H V"]:
        """Returns the values, summed with weights, in their own dtype."""
        ...


@flax.struct.dataclass
class KeyValues:
    """Projected keys and values of whole sequences, and the matmul dtype; their own when None."""

    keys: Float[Array, "*B S H K"]
    values: Float[Array, "*B S H V"]
    dtype: DTypeLike | None = flax.struct.field(pytree_node=False, default=None)

    @property
    def num_heads(self) -> int:
        return self.keys.shape[-2]

    def scores(self, queries: Float[Array, "B T H K"]) -> Float[Array, "B H T S"]:
        return einsum(SCORES, queries, self.keys, self.dtype)

    def weighted_sum(self, weights: Float[Array, "B H T S"]) -> Float[Array, "B T H V"]:
        dtype = self.values.dtype
        return einsum(WEIGHTED_SUM, weights.astype(dtype), self.values, self.dtype).astype(dtype)


def attend(
    queries: Float[Array, "B T H K"],
    key_values: KeyValueSource,
    keys: Keys,
    dropout: Callable[[Float[Array, "B H T S"]], Float[Array, "B H T S"]] | None = None,
) -> tuple[Float[Array, "B T H V"], Float[Array, "B H T S"]]:
    """Returns softmax(Q K^T / sqrt(d_k)) V (equation 1), and the weights before dropout.

    Keys and values may have fewer heads than queries. Each of their heads then serves as many
    consecutive heads of the queries: grouped-query attention (Ainslie et al. 2023), or multi-query
    attention (Shazeer 2019) with a single one.

    A query that may attend nowhere, which is padding, gets the average of all values. No result
    may depend on it. ``dropout`` applies to the weights that multiply the values.
    """
    batch, length, heads, size = queries.shape
    grouped = _group(queries, key_values.num_heads)
    scores = key_values.scores(grouped)
    scores = scores.reshape(batch, heads, length, scores.shape[-1])
    scores = scores / math.sqrt(size) if keys.scale is None else scores * keys.scale
    if keys.soft_cap is not None:
        scores = keys.soft_cap * jnp.tanh(scores / keys.soft_cap)
    if keys.bias is not None:
        bias = keys.bias(keys.queries.positions, keys.keys.positions)
        scores = scores + bias.astype(scores.dtype)
    weights = _softmax(scores, keys.allowed())
    kept = weights if dropout is None else dropout(weights)
    kept = kept.reshape(batch, grouped.shape[2], grouped.shape[1], kept.shape[-1])
    return _ungroup(key_values.weighted_sum(kept), heads), weights


def _group(queries: Float[Array, "B T H K"], num_heads: int) -> Float[Array, "B Q J K"]:
    """Returns queries of J heads: Q = T * H / J, first all of the first head of each group."""
    batch, length, heads, size = queries.shape
    if heads == num_heads:
        return queries
    groups = heads // num_heads
    split = queries.reshape(batch, length, num_heads, groups, size)
    return jnp.moveaxis(split, 3, 1).reshape(batch, groups * length, num_heads, size)


def _ungroup(attended: Float[Array, "B Q J V"], heads: int) -> Float[Array, "B T H V"]:
    batch, queries, num_heads, size = attended.shape
    if heads == num_heads:
        return attended
    groups = heads // num_heads
    split = attended.reshape(batch, groups, queries // groups, num_heads, size)
    return jnp.moveaxis(split, 1, 3).reshape(batch, queries // groups, heads, size)


def _softmax(
    scores: Float[Array, "B H T S"], allowed: Bool[Array, "#B #H #T #S"] | None
) -> Float[Array, "B H T S"]:
    if allowed is not None:
        # The lowest float gives the same weights as -inf, exactly 0, but no NaN in padding.
        scores = jnp.where(allowed, scores, jnp.finfo(scores.dtype).min)
    return jax.nn.softmax(scores, axis=-1)


def attention(
    queries: Queries, key_values: KeyValues, keys: Keys, dropout: RowDropout | None = None
) -> Float[Array, "B T H V"]:
    """Computes equation 1 over whole sequences, with the implementation that suits their length."""
    length, seen = queries.shape[1], key_values.keys.shape[1]
    known = isinstance(length, int) and isinstance(seen, int)  # Not in an export for any length.
    is_long = known and length == seen and seen > 4 * (keys.window or seen)
    if is_long and keys.mask is None:
        return windowed_attention(queries, key_values, keys, dropout)
    if dropout is None and has_fused_kernel(queries, key_values.values, keys):
        return fused_attention(queries, key_values, keys)
    if known and length * seen > backend().scores_per_chunk:
        return chunked_attention(queries, key_values, keys, dropout)
    return attend(queries, key_values, keys, dropout)[0]


def windowed_attention(
    queries: Queries, key_values: KeyValues, keys: Keys, dropout: RowDropout | None = None
) -> Float[Array, "B T H V"]:
    """Computes self-attention with a window, in time and memory O(window * T).

    The keys have a window and no mask. The sequence is split into blocks of one window. A block
    attends to itself, to the block before it and, unless the keys are causal, to the one after it.
    All attend to the global tokens, which attend to all tokens.
    """
    first, length, size = keys.global_tokens, queries.shape[1], keys.window or 1
    blocks = -(-length // size)
    before, after = (1, 0) if keys.causal else (1, 1)

    def own(x: Array) -> Array:
        return _split(x, 1, blocks, size)

    def near(x: Array) -> Array:
        """Returns the tokens that each block sees: the global ones, and its neighborhood."""
        split = _split(x, 1, before + blocks + after, size, before)
        seen = [split[:, i : i + blocks] for i in range(before + 1 + after)]
        if first:
            seen.insert(0, jnp.repeat(x[:, None, :first], blocks, axis=1))
        return jnp.concatenate(seen, axis=2)

    is_token, tokens = near(jnp.ones((1, length), bool)), jax.tree.map(near, keys.keys)
    if first:  # A global token counts once, among the global ones.
        is_near = (jnp.arange(is_token.shape[2]) >= first)[None, None]
        is_token &= ~(is_near & (tokens.index < first))
    # Only these have blocks; all other fields of the keys are the same for every block.
    split = own(queries), jax.tree.map(own, keys.queries), jax.tree.map(near, key_values), tokens

    def block(arguments: tuple[Array, Tokens, KeyValues, Tokens, Array], number: Array) -> Array:
        queries, positions, key_values, tokens, mask = arguments
        seen = dataclasses.replace(keys, queries=positions, keys=tokens, mask=mask, slots=None)
        return attend(queries, key_values, seen, _dropout_of_block(dropout, number, blocks))[0]

    arguments = *split, is_token[:, :, None, None]
    attended = jax.vmap(block, in_axes=(1, 0), out_axes=1)(arguments, jnp.arange(blocks))
    result = _join(attended, length)
    if first:
        tokens = jax.tree.map(lambda a: a[:, :first], keys.queries)
        seeing_all = dataclasses.replace(keys, queries=tokens)
        others = attend(queries[:, :first], key_values, seeing_all, dropout)[0]
        result = jnp.concatenate([others, result[:, first:]], axis=1)
    return result


def chunked_attention(
    queries: Queries, key_values: KeyValues, keys: Keys, dropout: RowDropout | None = None
) -> Float[Array, "B T H V"]:
    """Computes equation 1 for a few queries at a time, in memory O(S).

    The backward pass recomputes the weights. Masks and biases are computed within each chunk.
    """
    length, seen, mask = queries.shape[1], key_values.keys.shape[1], keys.mask
    size = max(1, min(length, backend().scores_per_chunk // (8 * seen)))
    chunks = -(-length // size)

    def split(x: Array, axis: int = 1) -> Array:
        return jnp.moveaxis(_split(x, axis, chunks, size), axis, 0)

    own_masks = None if mask is None or mask.shape[2] == 1 else split(mask, 2)

    @jax.checkpoint
    def chunk(arguments: tuple[Array, Array, Tokens, Array | None]) -> Array:
        number, queries, tokens, own_mask = arguments
        own_mask = mask if own_mask is None else own_mask
        own = dataclasses.replace(keys, queries=tokens, mask=own_mask)
        return attend(queries, key_values, own, _dropout_of_block(dropout, number, chunks))[0]

    tokens = jax.tree.map(split, keys.queries)
    result = jax.lax.map(chunk, (jnp.arange(chunks), split(queries), tokens, own_masks))
    return _join(jnp.moveaxis(result, 0, 1), length)


def _split(x: Array, axis: int, blocks: int, size: int, before: int = 0) -> Array:
    """Splits an axis, [B, T, ...] to [B, blocks, size, ...], after ``before`` empty ones."""
    start = before * size
    padding = [(0, 0)] * x.ndim
    padding[axis] = (start, blocks * size - start - x.shape[axis])
    return jnp.pad(x, padding).reshape(*x.shape[:axis], blocks, size, *x.shape[axis + 1 :])


def _join(x: Array, length: int) -> Array:
    """Joins blocks: [B, blocks, size, ...] to [B, T, ...]."""
    return x.reshape(x.shape[0], x.shape[1] * x.shape[2], *x.shape[3:])[:, :length]


def _dropout_of_block(dropout: RowDropout | None, number: Array, blocks: int) -> RowDropout | None:
    """Returns the dropout of a block of queries, which has masks of its own."""
    if dropout is None:
        return None
    return dataclasses.replace(dropout, row_ids=dropout.row_ids * blocks + number)


def fused_attention(queries: Queries, key_values: KeyValues, keys: Keys) -> Float[Array, "B T H V"]:
    """Computes :func:`attend` by cuDNN, without weights in memory, if :func:`has_fused_kernel`."""
    mask = keys.allowed()
    if mask is not None:  # The kernel returns NaN for queries that may attend nowhere.
        mask = mask | ~mask.any(axis=-1, keepdims=True)
    options = {"mask": mask, "scale": keys.scale, "implementation": "cudnn"}
    return jax.nn.dot_product_attention(queries, key_values.keys, key_values.values, **options)


def has_fused_kernel(queries: Queries, values: Float[Array, "B S J V"], keys: Keys) -> bool:
    """Returns whether :func:`fused_attention` supports these arrays and this device.

    It requires an NVIDIA GPU (Ampere or later), bfloat16, d_k = d_v, a multiple of 8 up to 128,
    even lengths, and keys without a bias or any other field that is not part of their mask. Neither
    heads nor the batch may be sharded, which is untested.
    """
    return (
        backend().fused_attention
        and _MASKING.issuperset(fields_given(keys))
        and queries.dtype == values.dtype == jnp.bfloat16
        and queries.shape[-1] == values.shape[-1]
        and queries.shape[-1] <= 128
        and queries.shape[-1] % 8 == queries.shape[1] % 2 == values.shape[1] % 2 == 0
        and num_shards("heads") == num_shards("batch") == 1
    )


def dot_product_attention(
    queries: Float[Array, "B T H K"],
    keys: Float[Array, "B S J K"],
    values: Float[Array, "B S J V"],
    mask: Bool[Array, "#B #H #T #S"] | None = None,
    dtype: DTypeLike | None = None,
) -> tuple[Float[Array, "B T H V"], Float[Array, "B H T S"]]:
    """Returns softmax(Q K^T / sqrt(d_k)) V (equation 1) and the attention weights, of plain arrays.

    Args:
      queries: Q.
      keys: K, with H heads, or with a divisor of H as :func:`attend` describes.
      values: V, in whose dtype the result is; weights are float32 or float64.
      mask: True where a query may attend; everywhere when None.
      dtype: Dtype to multiply in; the dtype of the arrays when None.
    """
    seen = Keys(Tokens.of(queries.shape[1]), Tokens.of(keys.shape[1]), mask)
    return attend(queries, KeyValues(keys, values, dtype), seen)


def additive_attention(
    queries: Float[Array, "B T H K"],
    keys: Float[Array, "B S H K"],
    values: Float[Array, "B S H V"],
    mask: Bool[Array, "#B #H #T #S"],
    vector: Float[Array, "H K"],
) -> tuple[Float[Array, "B T H V"], Float[Array, "B H T S"]]:
    """Returns additive attention (section 3.2.1; Bahdanau et al. 2015) and its weights.

    No model uses it; it is for comparison. The mask and the results are as for
    :func:`dot_product_attention`. Queries and keys are already multiplied by the network's
    matrices; ``vector`` has the weights of its output.
    """
    weights = _softmax(additive_scores(queries, keys, vector), mask)
    return KeyValues(keys, values).weighted_sum(weights), weights


def additive_scores(
    queries: Float[Array, "B T H K"], keys: Float[Array, "B S H K"], vector: Float[Array, "H K"]
) -> Float[Array, "B H T S"]:
    """Returns scores ``vector . tanh(query + key)``, of a network with K hidden units.

    No matmul can compute them: all B T S H K hidden units are computed, though not stored.
    """
    dtype = at_least_float32(queries, keys, vector)
    queries, keys, vector = (a.astype(dtype) for a in (queries, keys, vector))
    return jnp.einsum("btshk,hk->bhts", jnp.tanh(queries[:, :, None] + keys[:, None]), vector)
