"""Convolutions over time."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from jaxformer.layout import expand_like
from jaxformer.nn.matmul import project
from jaxformer.nn.parameters import parameter
from jaxformer.nn.precision import ComputeDtype, matmul_dtype


def convolve(
    x: Float[Array, "B T C"],
    kernel: Float[Array, "K C O"],
    bias: Float[Array, " O"] | None = None,
    *,
    stride: int = 1,
    compute_dtype: ComputeDtype = "float32",
) -> Float[Array, "B N O"]:
    """Returns a convolution without padding, of (T - K) // stride + 1 frames.

    It is one matmul of windows, which is faster on CPUs than XLA's convolution.

    >>> x = jnp.arange(5.0).reshape(1, 5, 1)
    >>> convolve(x, jnp.ones((3, 1, 1)), stride=2).ravel().tolist()
    [3.0, 9.0]
    """
    size, channels, outputs = kernel.shape
    matrix = kernel.reshape(size * channels, outputs)
    frames = windows(x, size, stride)  # [B, N, K C]
    return project(frames, matrix, bias, compute_dtype)


def windows(x: Float[Array, "B T C"], size: int, stride: int = 1) -> Float[Array, "B N K_C"]:
    """Returns the frames of each window of ``size`` frames, one after another."""
    length = x.shape[1]
    num_windows = (length - size) // stride + 1

    # Tap k sees frame k of each window: every ``stride``-th frame of the input, from k.
    last_start = stride * (num_windows - 1)
    taps = [x[:, tap : tap + last_start + 1 : stride] for tap in range(size)]  # each [B, N, C]
    return jnp.concatenate(taps, axis=-1)


class PositionalConvolution(nn.Module):
    """A grouped convolution in place of an encoding of positions (Mohamed et al. 2019).

    Weights are normalized (Salimans and Kingma 2016): all weights of a tap have the norm ``scale``.
    The result has as many frames as the input, which is padded with zeros on both sides; an even
    kernel sees one more frame on the left.

    Attributes:
      size: Number of taps.
      groups: Groups of channels; a group sees no other.
      compute_dtype: Dtype of the inputs of the convolution.
    """

    size: int
    groups: int
    compute_dtype: ComputeDtype = "float32"

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        d_model = x.shape[-1]
        width = d_model // self.groups

        deviation = 2 / (self.size * d_model) ** 0.5
        normal = nn.initializers.normal(deviation)
        shape = (self.size, width, d_model)
        kernel = parameter(self, "kernel", normal, shape)

        # The norm that the weights of a tap are expected to have at the beginning.
        norm = deviation * (width * d_model) ** 0.5
        constant = nn.initializers.constant(norm)
        scale = parameter(self, "scale", constant, (self.size,))
        bias = parameter(self, "bias", nn.initializers.zeros, (d_model,))

        squares = jnp.square(kernel)
        norms = jnp.sqrt(squares.sum(axis=(1, 2), keepdims=True))  # [K, 1, 1]
        weights = scale[:, None, None] * kernel / norms

        before = self.size // 2
        after = self.size - 1 - before
        dtype = matmul_dtype(self.compute_dtype, x, weights)
        convolved = jax.lax.conv_general_dilated(
            x.astype(dtype),
            weights.astype(dtype),
            window_strides=(1,),
            padding=[(before, after)],
            dimension_numbers=("NWC", "WIO", "NWC"),
            feature_group_count=self.groups,
        )
        convolved = convolved.astype(x.dtype)
        return convolved + expand_like(bias.astype(x.dtype), convolved)
