"""Layer normalization."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from jaxformer.nn.parameters import parameter


class LayerNorm(nn.Module):
    """Layer normalization (Ba et al. 2016), with float32 statistics and a result in x's dtype.

    Attributes:
      epsilon: Added to the variance.
    """

    epsilon: float = 1e-6

    @nn.compact
    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        """Normalizes the last axis to mean 0 and variance 1, then scales and shifts it."""
        scale = parameter(self, "scale", nn.initializers.ones, (x.shape[-1],))
        bias = parameter(self, "bias", nn.initializers.zeros, (x.shape[-1],))
        wide = x.astype(jnp.float32)
        centered = wide - wide.mean(axis=-1, keepdims=True)
        variance = jnp.square(centered).mean(axis=-1, keepdims=True)
        return (centered * jax.lax.rsqrt(variance + self.epsilon) * scale + bias).astype(x.dtype)
