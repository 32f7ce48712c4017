"""Attention over all heads at once: equation 1 in three kernels, and additive attention.

The three kernels compute the same function of queries, keys, values and a mask, and differ in
speed. :class:`~jaxformer.nn.attention.MultiHeadAttention` chooses the one for whole sequences;
decoding uses :func:`cached_attention`.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from jaxformer.nn.backend import backend
from jaxformer.nn.matmul import SCORES, WEIGHTED_SUM, einsum
from jaxformer.nn.precision import at_least_float32
from jaxformer.nn.sharding import shards_of


def dot_product_attention(
    queries: Float[Array, "B T H K"],
    keys: Float[Array, "B S H K"],
    values: Float[Array, "B S H V"],
    mask: Bool[Array, "#B #H #T #S"],
    dropout: Callable[[Float[Array, "B H T S"]], Float[Array, "B H T S"]] | None = None,
    dtype: DTypeLike | None = None,
) -> tuple[Float[Array, "B T H V"], Float[Array, "B H T S"]]:
    """Returns softmax(Q K^T / sqrt(d_k)) V (equation 1) and the attention weights.

    Args:
      queries: Q.
      keys: K.
      values: V.
      mask: True where a query may attend. A query that may attend nowhere, which is padding, gets
        the average of all values; nothing may depend on it.
      dropout: Applied to the weights that multiply the values; no dropout when None.
      dtype: Dtype to multiply in; the dtype of the arrays when None.

    Returns:
      The attended values in the dtype of ``values``, and the weights before dropout, float32 or
      float64.
    """
    scores = einsum(SCORES, queries, keys, dtype)
    return _weighted_sum(scores / math.sqrt(queries.shape[-1]), values, mask, dropout, dtype)


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
    return _weighted_sum(additive_scores(queries, keys, vector), values, mask)


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


def _weighted_sum(
    scores: Float[Array, "B H T S"],
    values: Float[Array, "B S H V"],
    mask: Bool[Array, "#B #H #T #S"],
    dropout: Callable | None = None,
    dtype: DTypeLike | None = None,
) -> tuple[Float[Array, "B T H V"], Float[Array, "B H T S"]]:
    weights = _masked_softmax(scores, mask)
    kept = weights if dropout is None else dropout(weights)
    attended = einsum(WEIGHTED_SUM, kept.astype(values.dtype), values, dtype)
    return attended.astype(values.dtype), weights


def _masked_softmax(scores: Float[Array, "..."], mask: Bool[Array, "..."]) -> Float[Array, "..."]:
    # The lowest float gives the same weights as -inf, exactly 0, but no NaN in padding.
    return jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(scores.dtype).min), axis=-1)


def fused_attention(
    queries: Float[Array, "B T H K"],
    keys: Float[Array, "B S H K"],
    values: Float[Array, "B S H V"],
    mask: Bool[Array, "#B #H #T #S"],
) -> Float[Array, "B T H V"]:
    """Computes :func:`dot_product_attention` in one cuDNN kernel, without weights in memory.

    Requires that :func:`has_fused_kernel` is True.
    """
    # The kernel returns NaN for queries that may attend nowhere, which are padding.
    mask = mask | ~mask.any(axis=-1, keepdims=True)
    return jax.nn.dot_product_attention(queries, keys, values, mask=mask, implementation="cudnn")


def has_fused_kernel(queries: Float[Array, "B T H K"], values: Float[Array, "B S H V"]) -> bool:
    """Returns whether :func:`fused_attention` supports these arrays and this device.

    It requires an NVIDIA GPU (Ampere or later), bfloat16, d_k = d_v, a multiple of 8 up to 128, and
    even lengths. Neither heads nor the batch may be sharded, which has not been tried.
    """
    return (
        backend().fused_attention
        and queries.dtype == values.dtype == jnp.bfloat16
        and queries.shape[-1] == values.shape[-1]
        and queries.shape[-1] <= 128
        and queries.shape[-1] % 8 == queries.shape[1] % 2 == values.shape[1] % 2 == 0
        and shards_of("heads") == shards_of("batch") == 1
    )


def cached_attention(
    queries: Float[Array, "B N H K"],
    keys: Float[Array, "B H K S"],
    values: Float[Array, "B H S V"],
    mask: Bool[Array, "#B #N S"],
) -> Float[Array, "B N H V"]:
    """Computes equation 1 for one query per beam; the beams of a sentence share keys and values.

    A decoding step multiplies little and reads much. On CPUs, elementwise products and sums read
    the cache once, from end to end, in the order of its axes.

    Args:
      queries: Q, in the compute dtype.
      keys: K; the position is the last axis.
      values: V; the position is the second-to-last axis.
      mask: True where a beam may attend.

    Returns:
      The attended values, in the dtype of ``values``.
    """
    dtype = at_least_float32(queries, keys, values)

    def weigh(scores: Float[Array, "B N H S"]) -> Float[Array, "B N H S"]:
        return _masked_softmax(scores / math.sqrt(queries.shape[-1]), mask[:, :, None])

    def sums_of_products(q: Array, k: Array, v: Array) -> Array:
        q, k, v = (a.astype(dtype) for a in (q, k, v))
        if q.shape[1] == 1:  # With an axis of size 1, XLA would take ten times as long.
            weights = weigh((q[:, 0, :, :, None] * k).sum(axis=2)[:, None])
            return (weights[:, 0, :, :, None] * v).sum(axis=2)[:, None]
        weights = weigh((q[..., None] * k[:, None]).sum(axis=3))
        return (weights[..., None] * v[:, None]).sum(axis=3)

    def matmuls(q: Array, k: Array, v: Array) -> Array:
        scores = jnp.einsum("bnhk,bhks->bnhs", q, k, preferred_element_type=dtype)
        weights = weigh(scores).astype(v.dtype)
        return jnp.einsum("bnhs,bhsv->bnhv", weights, v, preferred_element_type=dtype)

    attended = jax.lax.platform_dependent(
        queries, keys, values, cpu=sums_of_products, default=matmuls
    )
    return attended.astype(values.dtype)
