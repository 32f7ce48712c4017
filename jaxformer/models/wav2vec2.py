"""Wav2Vec 2.0 (Baevski et al. 2020): convolutions over a wave, and the encoder of the paper."""

import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from jaxformer.errors import UserError
from jaxformer.fields import setting
from jaxformer.layout import expand_like
from jaxformer.models.architecture import (
    PaperArchitecture,
    StackSettings,
    absent_bias,
    check_divides,
)
from jaxformer.models.assembly import Model, make_stack
from jaxformer.models.encoder import linear
from jaxformer.nn.convolution import PositionalConvolution, convolve
from jaxformer.nn.dropout import Dropout, RowIds, dropout_rows
from jaxformer.nn.feed_forward import Activation, activate
from jaxformer.nn.keys import Keys
from jaxformer.nn.matmul import project
from jaxformer.nn.norm import LayerNorm
from jaxformer.nn.parameters import parameter
from jaxformer.nn.precision import ComputeDtype, activation_dtype, at_least_float32
from jaxformer.nn.quantizer import GumbelQuantizer

_CONV_EPSILON = 1e-5  # of the norms between convolutions, in all published models


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wav2Vec2Config(PaperArchitecture):
    """The architecture of :class:`Wav2Vec2`; by default the base model.

    Fields that are not listed are as in :class:`~jaxformer.models.gpt2.GPT2Config`.

    Attributes:
      vocab_size: Number of letters and special tokens; token 0 is the blank of CTC.
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
      norm_position: "post" as in the base model, "pre" as in the large one.
      head: "letters" for CTC, or "contrast" for pretraining without transcripts.
      codebooks: Codebooks that quantize the frames in pretraining.
      codebook_entries: Entries of each.
      code_size: Size of quantized frames.
      contrast_size: Size of the vectors that are compared.
      num_negatives: Other frames that a quantized frame is told apart from.
      mask_rate: Fraction of the frames that are masked in training, in spans that may overlap.
      mask_length: Frames of a span.
      absent_tokens: Special tokens that the vocabulary lacks.
    """

    architecture: Literal["wav2vec2"] = "wav2vec2"
    vocab_size: int = setting(32, "size", may_differ=True)
    sample_rate: int = setting(16_000, "size")
    standardized: bool = True
    conv_widths: tuple[int, ...] = setting((512,) * 7, "size")
    conv_kernels: tuple[int, ...] = setting((10, 3, 3, 3, 3, 2, 2), "size")
    conv_strides: tuple[int, ...] = setting((5, 2, 2, 2, 2, 2, 2), "size")
    conv_norm: Literal["group", "layer"] = "group"
    conv_bias: bool = False
    position_kernel: int = setting(128, "size")
    position_groups: int = setting(16, "size")
    d_model: int = setting(768, "size")
    d_ff: int = setting(3072, "size")
    num_heads: int = setting(12, "size")
    num_layers: int = setting(12, "size")
    norm_position: Literal["post", "pre"] = "post"
    activation: Activation = "gelu_exact"
    dropout_rate: float = setting(0.1, "fraction", may_differ=True)
    attention_dropout_rate: float = setting(0.1, "fraction", may_differ=True)
    head: Literal["letters", "contrast"] = setting("letters", may_differ=True)
    codebooks: int = setting(2, "positive", may_differ=True)
    codebook_entries: int = setting(320, "size", may_differ=True)
    code_size: int = setting(256, "size", may_differ=True)
    contrast_size: int = setting(256, "size", may_differ=True)
    num_negatives: int = setting(100, "positive", may_differ=True)
    mask_rate: float = setting(0.0, "fraction", may_differ=True)
    mask_length: int = setting(10, "positive", may_differ=True)
    norm_epsilon: float = setting(1e-5, "positive")
    absent_tokens: str = setting("", may_differ=True)
    compute_dtype: ComputeDtype = setting("float32", may_differ=True, per_use=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        unknown = set(self.absent_tokens.split()) - {"eos", "bos", "unk"}
        if unknown:
            raise UserError(
                "model.absent_tokens must be some of eos, bos, unk, separated by spaces: got "
                f"{self.absent_tokens!r:.80}"
            )
        check_divides(self, "position_groups", "d_model")
        check_divides(self, "codebooks", "code_size")
        if self.head == "contrast" and not self.mask_rate:
            raise UserError(
                "model.mask_rate must be above 0 with model.head=contrast, such as 0.5: masked "
                "frames are predicted"
            )

        lengths = {len(self.conv_widths), len(self.conv_kernels), len(self.conv_strides)}
        if len(lengths) > 1 or 0 in lengths:
            raise UserError(
                "model.conv_widths, model.conv_kernels and model.conv_strides must have a number "
                f"for each convolution: got {self.conv_widths}, {self.conv_kernels} and "
                f"{self.conv_strides}"
            )

    def stack_settings(self) -> StackSettings:
        return dataclasses.replace(super().stack_settings(), norm_position=self.norm_position)

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


class Contrast(NamedTuple):
    """Predictions of quantized frames, to be told apart from other frames.

    Attributes:
      predictions: Outputs of the encoder, projected.
      targets: Quantized frames, projected.
      codes: Entries that a frame is quantized to, one of each codebook.
      distribution: Probabilities of all entries.
      real: True for frames of a recording.
    """

    predictions: Float[Array, "B T P"]
    targets: Float[Array, "B T P"]
    codes: Int[Array, "B T G"]
    distribution: Float[Array, "B T G E"]
    real: Bool[Array, "B T"]


class WaveConvolutions(nn.Module):
    """The convolutions over a wave, each with its activation.

    Padding changes no frame of a recording. ``conv_norm="group"`` therefore takes the mean and the
    variance over its real frames only, as if the recording were alone.
    """

    config: Wav2Vec2Config

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
        normalized = centered * jax.lax.rsqrt(variance + self.epsilon)

        scaled = normalized * expand_like(scale.astype(wide.dtype), wide)
        return (scaled + expand_like(bias.astype(wide.dtype), wide)).astype(x.dtype)


def is_real(lengths: Int[Array, " B"], size: int) -> Bool[Array, "B T"]:
    """Returns True for the first ``lengths`` of ``size`` places in each row."""
    return jnp.arange(size) < lengths[:, None]


class Wav2Vec2(Model):
    """An encoder of speech that predicts letters, for CTC.

    Departs from the paper: convolutions over a wave take the place of embeddings, and one over
    their frames encodes positions.
    """

    config: Wav2Vec2Config

    def setup(self) -> None:
        self._check_config()
        c = self.config
        self.convolutions = WaveConvolutions(c)
        self.input_norm = LayerNorm(c.norm_epsilon)
        axes = ("channels", "d_model")
        width = c.conv_widths[-1]
        self.input_projection = self._make_linear("input_projection", c.d_model, axes, inputs=width)
        uniform = nn.initializers.uniform(1.0)
        self.masked = parameter(self, "masked", uniform, (c.d_model,))

        self.positions = PositionalConvolution(
            c.position_kernel, c.position_groups, c.compute_dtype
        )
        if c.norm_position == "post":
            self.norm = LayerNorm(c.norm_epsilon)
        self.dropout = Dropout(c.dropout_rate)
        self.encoder = make_stack(c.stack_settings(), remat=self.remat)

        if c.head == "letters":
            self.letters = self._make_linear("letters", c.vocab_size)
        else:
            self.quantizer = GumbelQuantizer(c.codebooks, c.codebook_entries, c.code_size)
            self.prediction = self._make_linear("prediction", c.contrast_size)
            self.target = self._make_linear("target", c.contrast_size, inputs=c.code_size)

    def __call__(
        self,
        samples: Float[Array, "B N"],
        lengths: Int[Array, " B"] | None = None,
        deterministic: bool = True,
        *,
        masked: Bool[Array, "B T"] | None = None,
        row_ids: RowIds = None,
    ) -> Float[Array, "B T V"]:
        """Returns logits of the letters of each frame, float32 or float64.

        With the other head, returns the predictions of :meth:`contrast`.

        Args:
          samples: Waves, padded with 0; of mean 0 and variance 1 if the model is ``standardized``.
          lengths: Number of samples of each row without padding; all when None.
          deterministic: False enables dropout, and needs ``rngs={"dropout": key}``. Static.
          masked: Frames that a learned vector replaces; none when None.
          row_ids: As in :class:`~jaxformer.Transformer`.
        """
        if self.config.head == "contrast":
            found = self.contrast(samples, lengths, deterministic, masked=masked, row_ids=row_ids)
            return found.predictions

        frames = self.features(
            samples,
            lengths,
            deterministic,
            masked=masked,
            row_ids=row_ids,
        )
        dropout = dropout_rows(samples.shape[0], deterministic, row_ids)
        logits = linear(self.dropout(frames.x, dropout), *self.letters)
        absent = absent_bias(self.config.absent_tokens, self.config.vocab_size)
        return logits if absent is None else logits + absent

    def contrast(
        self,
        samples: Float[Array, "B N"],
        lengths: Int[Array, " B"] | None = None,
        deterministic: bool = True,
        *,
        masked: Bool[Array, "B T"] | None = None,
        noise: Float[Array, "B T G E"] | None = None,
        row_ids: RowIds = None,
    ) -> Contrast:
        """Returns predictions of quantized frames, and the quantized frames; see ``__call__``.

        Args:
          samples: As in ``__call__``; also ``lengths``, ``deterministic`` and ``row_ids``.
          lengths: See there.
          deterministic: See there.
          masked: Frames that are hidden from the encoder, but not from the quantizer.
          noise: Gumbel noise of the quantizer; None chooses the most probable entries.
          row_ids: See there.
        """
        frames = self.wave_features(samples, lengths)
        encoded = self.encode(frames, deterministic, masked=masked, row_ids=row_ids)
        quantized = self.quantizer(frames.x, noise)
        return Contrast(
            predictions=linear(encoded.x, *self.prediction),
            targets=linear(quantized.vectors, *self.target),
            codes=quantized.codes,
            distribution=quantized.distribution,
            real=frames.real,
        )

    def features(
        self,
        samples: Float[Array, "B N"],
        lengths: Int[Array, " B"] | None = None,
        deterministic: bool = True,
        *,
        masked: Bool[Array, "B T"] | None = None,
        row_ids: RowIds = None,
    ) -> Frames:
        """Returns the output of the encoder; see ``__call__``."""
        frames = self.wave_features(samples, lengths)
        return self.encode(frames, deterministic, masked=masked, row_ids=row_ids)

    def wave_features(
        self,
        samples: Float[Array, "B N"],
        lengths: Int[Array, " B"] | None = None,
    ) -> Frames:
        """Returns the normalized output of the convolutions over the wave."""
        c = self.config
        batch, size = samples.shape
        if size < c.shortest:
            raise UserError(f"Wav2Vec2: expected at least {c.shortest} samples, got {size}")
        if lengths is None:
            lengths = jnp.full((batch,), size, jnp.int32)

        matrix, _ = self.input_projection
        dtype = activation_dtype(c.compute_dtype, matrix)
        x = self.convolutions(jnp.asarray(samples).astype(dtype), lengths)
        real = is_real(c.num_frames(lengths), x.shape[1])
        return Frames(self.input_norm(x), real)

    def encode(
        self,
        frames: Frames,
        deterministic: bool = True,
        *,
        masked: Bool[Array, "B T"] | None = None,
        row_ids: RowIds = None,
    ) -> Frames:
        """Returns the output of the encoder, given the frames of the wave."""
        dropout = dropout_rows(frames.x.shape[0], deterministic, row_ids)
        x = project(frames.x, *self.input_projection, self.config.compute_dtype)  # [B, T, D]
        if masked is not None:
            x = jnp.where(masked[..., None], self.masked.astype(x.dtype), x)

        # A recording ends with silence for the convolution, as if it were alone.
        x = jnp.where(frames.real[..., None], x, 0)
        x = x + activate("gelu_exact", self.positions(x))
        if self.config.norm_position == "post":
            x = self.norm(x)
        x = self.dropout(x, dropout)

        segments = frames.real.astype(jnp.int32)
        keys = Keys.of_sequence(x.shape[1], segments)
        return Frames(self.encoder(x, keys, dropout=dropout), frames.real)
