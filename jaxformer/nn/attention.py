"""Scaled dot-product and multi-head attention (section 3.2)."""

import math

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from jaxformer.config import ModelConfig


def dot_product_attention(
    queries: Float[Array, "B T H K"],
    keys: Float[Array, "B S H K"],
    values: Float[Array, "B S H V"],
    mask: Bool[Array, "#B 1 #T S"],
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
    scores = scores / math.sqrt(queries.shape[-1])
    # The lowest float instead of -inf: the same weights, exactly 0, but no NaN in padding.
    scores = jnp.where(mask, scores, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1)
    return jnp.einsum("bhts,bshv->bthv", weights.astype(values.dtype), values), weights


def project(
    x: Float[Array, "*rows D"], kernel: Float[Array, "D ..."], dtype: DTypeLike
) -> Float[Array, "..."]:
    """Matrix product of the last axis of ``x`` with the first of ``kernel``.

    Rows are flattened to two dimensions first: the weight gradient that autodiff derives from
    a three-dimensional product is much slower on CPUs, and equal elsewhere.
    """
    flat = x.reshape(-1, x.shape[-1]).astype(dtype)
    product = flat @ kernel.reshape(kernel.shape[0], -1).astype(dtype)
    return product.reshape(*x.shape[:-1], *kernel.shape[1:])


class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O (section 3.2.2), without biases.

    ``attend`` records its weights, [B, H, T, S], as the intermediate "weights": apply the model
    with ``mutable=["intermediates"]`` to look at them.
    """

    config: ModelConfig

    def setup(self) -> None:
        """Creates W^Q, W^K, W^V as [D, H, K or V] and W^O as [H * V, D]."""
        c = self.config
        heads = nn.initializers.variance_scaling(
            1.0, "fan_avg", "uniform", in_axis=0, out_axis=(1, 2)
        )
        output = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform")
        self.query = self.param("query", heads, (c.d_model, c.num_heads, c.key_size))
        self.key = self.param("key", heads, (c.d_model, c.num_heads, c.key_size))
        self.value = self.param("value", heads, (c.d_model, c.num_heads, c.value_size))
        self.output = self.param("output", output, (c.num_heads * c.value_size, c.d_model))

    def __call__(
        self,
        queries_from: Float[Array, "B T D"],
        keys_from: Float[Array, "B S D"],
        mask: Bool[Array, "B 1 T S"],
    ) -> Float[Array, "B T D"]:
        """Attends from one sequence to another, or to itself."""
        return self.attend(queries_from, *self.keys_values(keys_from), mask)

    def keys_values(
        self, x: Float[Array, "B S D"]
    ) -> tuple[Float[Array, "B S H K"], Float[Array, "B S H V"]]:
        """The keys and values of every head."""
        dtype = self.config.compute_dtype
        return project(x, self.key, dtype), project(x, self.value, dtype)

    def attend(
        self,
        x: Float[Array, "B T D"],
        keys: Float[Array, "B S H K"],
        values: Float[Array, "B S H V"],
        mask: Bool[Array, "#B 1 #T S"],
    ) -> Float[Array, "B T D"]:
        """Attends from ``x`` to keys and values that are already projected."""
        dtype = self.config.compute_dtype
        heads, weights = dot_product_attention(project(x, self.query, dtype), keys, values, mask)
        self.sow("intermediates", "weights", weights)
        return project(heads.reshape(*x.shape[:-1], -1), self.output, dtype)
