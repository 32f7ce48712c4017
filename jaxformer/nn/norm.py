"""Layer normalization, root mean square normalization, and none."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from jaxformer.layout import expand_like
from jaxformer.nn.parameters import parameter
from jaxformer.nn.precision import at_least_float32


class LayerNorm(nn.Module):
    """Layer normalization (Ba et al. 2016), in float32 or float64, with a result in x's dtype.

    Attributes:
      epsilon: Added to the variance.
    """

    epsilon: float = 1e-6

    @nn.compact
    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        """Normalizes the last axis to mean 0 and variance 1, then scales and shifts it."""
        d_model = x.shape[-1]
        scale = parameter(self, "scale", nn.initializers.ones, (d_model,))
        bias = parameter(self, "bias", nn.initializers.zeros, (d_model,))

        # Statistics of bfloat16 activations would be too coarse.
        wide = x.astype(at_least_float32(x, scale))
        scale = expand_like(scale.astype(wide.dtype), wide)
        bias = expand_like(bias.astype(wide.dtype), wide)

        centered = wide - wide.mean(axis=-1, keepdims=True)
        variance = jnp.square(centered).mean(axis=-1, keepdims=True)  # [*rows, 1]
        normalized = centered * jax.lax.rsqrt(variance + self.epsilon)
        return (normalized * scale + bias).astype(x.dtype)


class RMSNorm(nn.Module):
    """Layer normalization without a mean and a bias (Zhang and Sennrich 2019).

    Attributes:
      epsilon: Added to the mean square.
      unit_offset: Scales by 1 plus the parameter, which begins with zeros, as in Gemma.
    """

    epsilon: float = 1e-6
    unit_offset: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        """Normalizes the last axis to mean square 1, then scales it."""
        d_model = x.shape[-1]
        initializer = nn.initializers.zeros if self.unit_offset else nn.initializers.ones
        scale = parameter(self, "scale", initializer, (d_model,))

        wide = x.astype(at_least_float32(x, scale))

        mean_square = jnp.square(wide).mean(axis=-1, keepdims=True)  # [*rows, 1]
        normalized = wide * jax.lax.rsqrt(mean_square + self.epsilon)
        scale = expand_like(scale.astype(wide.dtype), wide)
        if self.unit_offset:
            scale = 1 + scale
        return (normalized * scale).astype(x.dtype)


class Identity(nn.Module):
    """Takes the place of a norm, in a model that normalizes elsewhere."""

    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        """Returns x."""
        return x
