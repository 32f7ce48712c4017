"""Position-wise feed-forward networks (section 3.3)."""

import typing
from typing import Literal

from flax import linen as nn
from jaxtyping import Array, Float

from jaxformer.nn.arguments import check_activations, check_choice, check_sizes
from jaxformer.nn.matmul import project
from jaxformer.nn.parameters import parameter
from jaxformer.nn.precision import ComputeDtype

Activation = Literal["relu", "gelu", "swish"]


class FeedForward(nn.Module):
    """FFN(x) = max(0, x W1 + b1) W2 + b2 (equation 2).

    Departs from the paper: ``activation="gelu"`` or ``"swish"``, optional, instead of max(0, .).

    >>> import jax
    >>> import jax.numpy as jnp
    >>> layer, x = FeedForward(2048), jnp.ones((1, 3, 512))
    >>> params = layer.init(jax.random.key(0), x)
    >>> layer.apply(params, x).shape
    (1, 3, 512)

    Attributes:
      d_ff: Inner width.
      activation: Activation between the two matmuls; "gelu" is the tanh approximation.
      compute_dtype: Dtype of the inputs of matrix multiplications.
    """

    d_ff: int
    activation: Activation = "relu"
    compute_dtype: ComputeDtype = "float32"

    @nn.compact
    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        """Applies the network to every position separately.

        Raises:
          UserError: ``d_ff`` is not a positive number, there is no such ``activation`` or
            ``compute_dtype``, or x has no feature axis.
        """
        check_sizes(self, "d_ff")
        check_choice(self, "activation", typing.get_args(Activation))
        check_activations("FeedForward", "x", x)
        d_model, d_ff = x.shape[-1], self.d_ff
        glorot = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform")
        zeros = nn.initializers.zeros
        inner = parameter(self, "inner", glorot, (d_model, d_ff), ("d_model", "d_ff"), "matrix")
        inner_bias = parameter(self, "inner_bias", zeros, (d_ff,))
        outer = parameter(self, "outer", glorot, (d_ff, d_model), ("d_ff", "d_model"), "matrix")
        outer_bias = parameter(self, "outer_bias", zeros, (d_model,))
        activation = getattr(nn, self.activation)
        hidden = activation(project(x, inner, inner_bias, self.compute_dtype))
        return project(hidden, outer, outer_bias, self.compute_dtype)
