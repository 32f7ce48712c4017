"""Scaled dot-product, additive and multi-head attention (section 3.2)."""

import math

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from jaxformer.config import ModelConfig
from jaxformer.nn.arguments import check_mask, check_model_config, check_width
from jaxformer.nn.projection import project
from jaxformer.nn.sharding import parts_of


def dot_product_attention(
    queries: Float[Array, "B T H K"],
    keys: Float[Array, "B S H K"],
    values: Float[Array, "B S H V"],
    mask: Bool[Array, "#B #H #T #S"],
) -> tuple[Float[Array, "B T H V"], Float[Array, "B H T S"]]:
    """Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V (equation 1), for all heads at once.

    Args:
      queries: Q, in the compute dtype.
      keys: K.
      values: V.
      mask: True where a query may attend. A query that may attend nowhere, which is padding,
        gets an average of all values; nothing may depend on it.

    Returns:
      The attended values in the dtype of ``values``, and the float32 attention weights.
    """
    scores = jnp.einsum("bthk,bshk->bhts", queries, keys, preferred_element_type=jnp.float32)
    return _weighted_sum(scores / math.sqrt(queries.shape[-1]), values, mask)


def additive_attention(
    queries: Float[Array, "B T H K"],
    keys: Float[Array, "B S H K"],
    values: Float[Array, "B S H V"],
    mask: Bool[Array, "#B #H #T #S"],
    vector: Float[Array, "H K"],
) -> tuple[Float[Array, "B T H V"], Float[Array, "B H T S"]]:
    """Additive attention (section 3.2.1; Bahdanau et al. 2015), the alternative to dot products.

    No model here uses it: it is for comparison. Arguments and results that
    :func:`dot_product_attention` has, too, are as there.

    Args:
      queries: Already multiplied by the network's matrix for queries.
      keys: Already multiplied by its matrix for keys.
      values: V.
      mask: True where a query may attend.
      vector: What the hidden layer is multiplied with, for every head.
    """
    return _weighted_sum(additive_scores(queries, keys, vector), values, mask)


def additive_scores(
    queries: Float[Array, "B T H K"],
    keys: Float[Array, "B S H K"],
    vector: Float[Array, "H K"],
) -> Float[Array, "B H T S"]:
    """Scores ``vector . tanh(query + key)``, float32: a network with one hidden layer of K units.

    It is never a matrix product: B T S H K numbers are computed, if not kept.
    """
    queries, keys, vector = (a.astype(jnp.float32) for a in (queries, keys, vector))
    hidden = jnp.tanh(queries[:, :, None] + keys[:, None])
    return jnp.einsum("btshk,hk->bhts", hidden, vector)


def _weighted_sum(
    scores: Float[Array, "B H T S"],
    values: Float[Array, "B S H V"],
    mask: Bool[Array, "#B #H #T #S"],
) -> tuple[Float[Array, "B T H V"], Float[Array, "B H T S"]]:
    """Values weighted by the softmax of the scores that the mask allows, and the weights."""
    # The lowest float instead of -inf: the same weights, exactly 0, but no NaN in padding.
    scores = jnp.where(mask, scores, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1)
    attended = jnp.einsum(
        "bhts,bshv->bthv",
        weights.astype(values.dtype),
        values,
        preferred_element_type=jnp.float32,
    )
    return attended.astype(values.dtype), weights


def fused_attention(
    queries: Float[Array, "B T H K"],
    keys: Float[Array, "B S H K"],
    values: Float[Array, "B S H V"],
    mask: Bool[Array, "#B #H #T #S"],
) -> Float[Array, "B T H V"]:
    """Equation 1 in one kernel of cuDNN, which never writes the attention weights to memory.

    Arguments and result are those of :func:`dot_product_attention`, for which
    :func:`has_fused_kernel` is true.
    """
    # The kernel's softmax over nothing, which is that of padding, would be NaN.
    mask = mask | ~mask.any(axis=-1, keepdims=True)
    return jax.nn.dot_product_attention(queries, keys, values, mask=mask, implementation="cudnn")


def has_fused_kernel(queries: Float[Array, "B T H K"], values: Float[Array, "B S H V"]) -> bool:
    """Whether :func:`fused_attention` can be used: it is the same function, and faster.

    On NVIDIA GPUs from Ampere on, in bfloat16, with d_k = d_v, a multiple of 8 up to 128, and even
    lengths. It has not been tried on heads or rows that the compiler splits.
    """
    capability = getattr(jax.devices()[0], "compute_capability", "")
    return (
        capability.split(".")[0].isdigit()
        and float(capability) >= 8.0
        and queries.dtype == values.dtype == jnp.bfloat16
        and queries.shape[-1] == values.shape[-1]
        and queries.shape[-1] <= 128
        and queries.shape[-1] % 8 == queries.shape[1] % 2 == values.shape[1] % 2 == 0
        and parts_of("heads") == parts_of("batch") == 1
    )


def cached_attention(
    queries: Float[Array, "B N H K"],
    keys: Float[Array, "B H K S"],
    values: Float[Array, "B H S V"],
    mask: Bool[Array, "#B #N S"],
) -> Float[Array, "B N H V"]:
    """Equation 1 for one query of each of N beams, which share their keys and values.

    In a step there is little to multiply and much to read. On CPUs the axes are in the order in
    which sums of products, without a matrix product, read the cache once and from end to end.

    Args:
      queries: Q, in the compute dtype.
      keys: K, positions last.
      values: V, positions last but one.
      mask: True where a beam may attend.

    Returns:
      The attended values, in the dtype of ``values``.
    """

    def weigh(scores: Float[Array, "B N H S"]) -> Float[Array, "B N H S"]:
        scores = scores / math.sqrt(queries.shape[-1])
        lowest = jnp.finfo(jnp.float32).min
        return jax.nn.softmax(jnp.where(mask[:, :, None], scores, lowest), axis=-1)

    def sums_of_products(q: Array, k: Array, v: Array) -> Array:
        q, k, v = (a.astype(jnp.float32) for a in (q, k, v))
        if q.shape[1] == 1:  # XLA would take ten times as long over an axis of one
            weights = weigh((q[:, 0, :, :, None] * k).sum(axis=2)[:, None])
            return (weights[:, 0, :, :, None] * v).sum(axis=2)[:, None]
        weights = weigh((q[..., None] * k[:, None]).sum(axis=3))
        return (weights[..., None] * v[:, None]).sum(axis=3)

    def matrix_products(q: Array, k: Array, v: Array) -> Array:
        how = {"preferred_element_type": jnp.float32}
        weights = weigh(jnp.einsum("bnhk,bhks->bnhs", q, k, **how))
        return jnp.einsum("bnhs,bhsv->bnhv", weights.astype(v.dtype), v, **how)

    attended = jax.lax.platform_dependent(
        queries, keys, values, cpu=sums_of_products, default=matrix_products
    )
    return attended.astype(values.dtype)


class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O (section 3.2.2).

    ``attend`` records its weights, [B, H, T, S], as the intermediate "weights": apply the model
    with ``mutable=["intermediates"]`` to look at them.

    Departs from the paper: ``config.biases``, which is optional, adds biases to all projections.
    """

    config: ModelConfig

    def setup(self) -> None:
        """Creates W^Q, W^K, W^V as [D, H, K or V] and W^O as [H * V, D]."""
        c = self.config
        check_model_config("MultiHeadAttention", c)
        heads = nn.initializers.variance_scaling(
            1.0, "fan_avg", "uniform", in_axis=0, out_axis=(1, 2)
        )
        output = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform")
        self.query = self.param("query", heads, (c.d_model, c.num_heads, c.key_size), jnp.float32)
        self.key = self.param("key", heads, (c.d_model, c.num_heads, c.key_size), jnp.float32)
        self.value = self.param("value", heads, (c.d_model, c.num_heads, c.value_size), jnp.float32)
        self.output = self.param(
            "output", output, (c.num_heads * c.value_size, c.d_model), jnp.float32
        )
        self.query_bias = self._bias("query_bias", (c.num_heads, c.key_size))
        self.key_bias = self._bias("key_bias", (c.num_heads, c.key_size))
        self.value_bias = self._bias("value_bias", (c.num_heads, c.value_size))
        self.output_bias = self._bias("output_bias", (c.d_model,))

    def _bias(self, name: str, shape: tuple[int, ...]) -> Array | None:
        return (
            self.param(name, nn.initializers.zeros, shape, jnp.float32)
            if self.config.biases
            else None
        )

    def __call__(
        self,
        queries_from: Float[Array, "B T D"],
        keys_from: Float[Array, "B S D"] | None = None,
        mask: Bool[Array, "#B #H #T #S"] | None = None,
    ) -> Float[Array, "B T D"]:
        """Attends from one sequence to another, or to itself.

        Args:
          queries_from: Activations that attend.
          keys_from: Activations to attend to; ``queries_from`` when None.
          mask: True where a query may attend; everywhere when None.

        Raises:
          UserError: An argument has another shape or dtype.
        """
        keys_from = queries_from if keys_from is None else keys_from
        for name, x in {"queries_from": queries_from, "keys_from": keys_from}.items():
            check_width("MultiHeadAttention", name, x, self.config.d_model)
        if mask is None:
            mask = jnp.ones((1, 1, 1, keys_from.shape[1]), bool)
        shape = (queries_from.shape[0], queries_from.shape[1], keys_from.shape[1])
        check_mask("MultiHeadAttention", "mask", mask, shape)
        return self.attend(queries_from, *self.keys_values(keys_from), mask)

    def keys_values(
        self, x: Float[Array, "B S D"]
    ) -> tuple[Float[Array, "B S H K"], Float[Array, "B S H V"]]:
        """The keys and values of every head."""
        keys = project(x, self.key, self.key_bias, self.config)
        return keys, project(x, self.value, self.value_bias, self.config)

    def attend(
        self,
        x: Float[Array, "B T D"],
        keys: Float[Array, "B S H K"],
        values: Float[Array, "B S H V"],
        mask: Bool[Array, "#B #H #T #S"],
    ) -> Float[Array, "B T D"]:
        """Attends from ``x`` to keys and values that are already projected."""
        queries = project(x, self.query, self.query_bias, self.config)
        if has_fused_kernel(queries, values) and not self.is_mutable_collection("intermediates"):
            heads = fused_attention(queries, keys, values, mask)
        else:
            heads, weights = dot_product_attention(queries, keys, values, mask)
            self.sow("intermediates", "weights", weights)
        return project(heads.reshape(*x.shape[:-1], -1), self.output, self.output_bias, self.config)

    def attend_cached(
        self,
        x: Float[Array, "B N D"],
        keys: Float[Array, "B H K S"],
        values: Float[Array, "B H S V"],
        mask: Bool[Array, "#B #N S"],
    ) -> Float[Array, "B N D"]:
        """Attends from the newest token of every beam; see :func:`cached_attention`."""
        queries = project(x, self.query, self.query_bias, self.config)
        heads = cached_attention(queries, keys, values, mask)
        return project(heads.reshape(*x.shape[:-1], -1), self.output, self.output_bias, self.config)
