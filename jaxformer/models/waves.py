"""The base of all sections ``model`` of models of waves, and the convolutions that read them."""

import dataclasses
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxformer.errors import UserError
from jaxformer.fields import setting
from jaxformer.layout import expand_like
from jaxformer.models.architecture import Architecture
from jaxformer.nn.convolution import convolve
from jaxformer.nn.feed_forward import activate
from jaxformer.nn.norm import LayerNorm
from jaxformer.nn.parameters import parameter
from jaxformer.nn.precision import at_least_float32

_CONV_EPSILON = 1e-5  # of the norms between convolutions, in all published models


@dataclasses.dataclass(frozen=True, kw_only=True)
class WaveArchitecture(Architecture):
    """The base of the sections of models that read waves with convolutions.

    Attributes:
      sample_rate: Samples per second.
      standardized: Samples of a recording have mean 0 and variance 1.
      conv_widths: Channels of each convolution over the wave.
      conv_kernels: Samples, or frames, that each of them sees.
      conv_strides: Steps of each of them.
      conv_norm: "group" normalizes each channel of the first convolution over time, "layer" the
        channels of each frame after every convolution.
      conv_bias: Convolutions have biases.
      position_kernel: Frames that the convolution sees that encodes positions.
      position_groups: Groups of its channels.
    """

    sample_rate: int = setting(16_000, "size")
    standardized: bool = True
    conv_widths: tuple[int, ...] = setting((512,) * 7, "size")
    conv_kernels: tuple[int, ...] = setting((10, 3, 3, 3, 3, 2, 2), "size")
    conv_strides: tuple[int, ...] = setting((5, 2, 2, 2, 2, 2, 2), "size")
    conv_norm: Literal["group", "layer"] = "group"
    conv_bias: bool = False
    position_kernel: int = setting(128, "size")
    position_groups: int = setting(16, "size")

    def __post_init__(self) -> None:
        super().__post_init__()
        lengths = {len(self.conv_widths), len(self.conv_kernels), len(self.conv_strides)}
        if len(lengths) > 1 or 0 in lengths:
            raise UserError(
                "model.conv_widths, model.conv_kernels and model.conv_strides must have a number "
                f"for each convolution: got {self.conv_widths}, {self.conv_kernels} and "
                f"{self.conv_strides}"
            )

    @property
    def shortest(self) -> int:
        """Samples of the shortest recording, which gives one frame."""
        samples = 1
        layers = zip(self.conv_kernels, self.conv_strides, strict=True)
        for kernel, stride in reversed(list(layers)):
            samples = (samples - 1) * stride + kernel
        return samples

    def num_frames(self, num_samples: Any) -> Any:
        """Returns the number of frames of a recording, given its samples: numbers or an array.

        >>> from jaxformer.models.wav2vec2 import Wav2Vec2Config
        >>> Wav2Vec2Config().num_frames(16_000)
        49
        """
        frames = num_samples
        for kernel, stride in zip(self.conv_kernels, self.conv_strides, strict=True):
            frames = (frames - kernel) // stride + 1
        return frames


class Frames(NamedTuple):
    """Frames of recordings.

    Attributes:
      x: Their features.
      real: True for frames of a recording, and False for padding.
    """

    x: Float[Array, "B T D"]
    real: Bool[Array, "B T"]


class WaveConvolutions(nn.Module):
    """The convolutions over a wave, each with its activation.

    Padding changes no frame of a recording. ``conv_norm="group"`` therefore takes the mean and the
    variance over its real frames only, as if the recording were alone.
    """

    config: WaveArchitecture

    @nn.compact
    def __call__(
        self,
        samples: Float[Array, "B N"],
        lengths: Int[Array, " B"],
    ) -> Float[Array, "B T C"]:
        c = self.config
        x = samples[..., None]
        layers = zip(c.conv_widths, c.conv_kernels, c.conv_strides, strict=True)
        for number, (width, kernel_size, stride) in enumerate(layers):
            kernel = parameter(
                self,
                f"kernel_{number}",
                nn.initializers.he_normal(in_axis=(0, 1), out_axis=2),
                (kernel_size, x.shape[-1], width),
            )
            bias = None
            if c.conv_bias:
                bias = parameter(self, f"bias_{number}", nn.initializers.zeros, (width,))

            x = convolve(x, kernel, bias, stride=stride, compute_dtype=c.compute_dtype)
            lengths = (lengths - kernel_size) // stride + 1
            if c.conv_norm == "layer":
                x = LayerNorm(_CONV_EPSILON, name=f"norm_{number}")(x)
            elif number == 0:
                x = ChannelNorm(_CONV_EPSILON, name="norm_0")(x, lengths)
            x = activate("gelu_exact", x)
        return x


class ChannelNorm(nn.Module):
    """Normalizes each channel over time: group normalization with one channel in each group."""

    epsilon: float

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T C"],
        lengths: Int[Array, " B"],
    ) -> Float[Array, "B T C"]:
        """Normalizes with the mean and the variance of the first ``lengths`` frames of a row."""
        channels = x.shape[-1]
        scale = parameter(self, "scale", nn.initializers.ones, (channels,))
        bias = parameter(self, "bias", nn.initializers.zeros, (channels,))

        wide = x.astype(at_least_float32(x, scale))
        real = is_real(lengths, x.shape[1])[..., None].astype(wide.dtype)  # [B, T, 1]
        count = jnp.maximum(real.sum(axis=1, keepdims=True), 1)
        mean = (wide * real).sum(axis=1, keepdims=True) / count
        centered = wide - mean
        variance = (jnp.square(centered) * real).sum(axis=1, keepdims=True) / count
        normalized = centered * lax.rsqrt(variance + self.epsilon)

        scaled = normalized * expand_like(scale.astype(wide.dtype), wide)
        return (scaled + expand_like(bias.astype(wide.dtype), wide)).astype(x.dtype)


def is_real(lengths: Int[Array, " B"], size: int) -> Bool[Array, "B T"]:
    """Returns True for the first ``lengths`` of ``size`` places in each row."""
    return jnp.arange(size) < lengths[:, None]
