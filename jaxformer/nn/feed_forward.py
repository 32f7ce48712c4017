"""Position-wise feed-forward networks (section 3.3)."""

import math
import typing
from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from jaxformer.nn.argument_checks import check_activations, check_choice, check_sizes
from jaxformer.nn.matmul import project
from jaxformer.nn.parameters import parameter
from jaxformer.nn.precision import ComputeDtype

Activation = Literal["relu", "gelu", "gelu_exact", "quick_gelu", "swish", "tanh"]


def activate(activation: Activation, x: Float[Array, "*X"]) -> Float[Array, "*X"]:
    """Applies an activation; "gelu" is the approximation with tanh, "gelu_exact" has erf.

    "quick_gelu" is the approximation with a sigmoid (Hendrycks and Gimpel 2016).
    """
    if activation == "gelu_exact":
        # x Phi(x), with the distribution function of the normal distribution
        return x * (1 + _erf(x * math.sqrt(0.5))) / 2
    if activation == "quick_gelu":
        return x * nn.sigmoid(1.702 * x)
    return getattr(nn, activation)(x)


@jax.custom_jvp
def _erf(x: Array) -> Array:
    return jax.lax.erf(x)


@_erf.defjvp
def _erf_jvp(
    primals: tuple[Array],
    tangents: tuple[Array],
) -> tuple[Array, Array]:
    # JAX's own derivative cannot be lowered within a shard_map (jax 0.12, 2026-11-26).
    [x] = primals
    [change] = tangents
    return _erf(x), change * jnp.exp(-x * x) * (2 / math.sqrt(math.pi))


class FeedForward(nn.Module):
    """FFN(x) = max(0, x W1 + b1) W2 + b2 (equation 2).

    Departs from the paper: another ``activation``, such as "gelu" or "swish", instead of max(0, .).
    With ``gated``, activation(x W1 + b1) is multiplied by one more projection, x W3 + b3 (Shazeer
    2020): ``FeedForward(d_ff, "swish", use_bias=False, gated=True)`` is SwiGLU. ``inner_gain`` and
    ``outer_gain`` are for deep stacks.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> layer, x = FeedForward(2048), jnp.ones((1, 3, 512))
    >>> params = layer.init(jax.random.key(0), x)
    >>> layer.apply(params, x).shape
    (1, 3, 512)

    Attributes:
      d_ff: Inner width.
      activation: Activation between the two matmuls; see :func:`activate`.
      compute_dtype: Dtype of the inputs of matrix multiplications.
      use_bias: Adds biases to all projections.
      gated: Multiplies the activation by a linear projection, "linear".
      inner_gain: Factor on the initial values of all matrices but the last one.
      outer_gain: The same for the last one.
    """

    d_ff: int
    activation: Activation = "relu"
    compute_dtype: ComputeDtype = "float32"
    use_bias: bool = True
    gated: bool = False
    inner_gain: float = 1.0
    outer_gain: float = 1.0

    @nn.compact
    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        """Applies the network to every position separately."""
        check_sizes(self, "d_ff")
        check_choice(self, "activation", typing.get_args(Activation))
        check_activations("FeedForward", "x", x)

        # max(0, x W1 + b1), or another activation
        hidden = activate(self.activation, self._project("inner", x, self.d_ff))  # [*rows, F]
        if self.gated:
            hidden = hidden * self._project("linear", x, self.d_ff)
        return self._project("outer", hidden, x.shape[-1])  # [*rows, D]

    def _project(
        self,
        name: str,
        x: Float[Array, "*rows D"],
        size: int,
    ) -> Float[Array, "*rows F"]:
        """Returns x W + b, given the name of W and the size of the result."""
        gain = self.outer_gain if name == "outer" else self.inner_gain
        glorot = nn.initializers.variance_scaling(gain**2, "fan_avg", "uniform")
        axes = ("d_ff", "d_model") if name == "outer" else ("d_model", "d_ff")
        shape = (x.shape[-1], size)
        matrix = parameter(self, name, glorot, shape, axes=axes, role="matrix")

        bias = None
        if self.use_bias:
            bias = parameter(self, f"{name}_bias", nn.initializers.zeros, (size,))

        return project(x, matrix, bias, compute_dtype=self.compute_dtype)
