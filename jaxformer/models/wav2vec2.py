"""Wav2Vec 2.0 (Baevski et al. 2020): convolutions over a wave, and the encoder of the paper."""

import dataclasses
from typing import Literal, NamedTuple

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from jaxformer.errors import UserError
from jaxformer.fields import setting
from jaxformer.models.architecture import (
    PaperArchitecture,
    StackSettings,
    absent_bias,
    check_divides,
)
from jaxformer.models.assembly import Model, make_stack
from jaxformer.models.encoder import linear
from jaxformer.models.waves import Frames, WaveArchitecture, WaveConvolutions, is_real
from jaxformer.nn.convolution import PositionalConvolution
from jaxformer.nn.dropout import Dropout, RowIds, dropout_rows
from jaxformer.nn.feed_forward import Activation, activate
from jaxformer.nn.keys import Keys
from jaxformer.nn.matmul import project
from jaxformer.nn.norm import LayerNorm
from jaxformer.nn.parameters import parameter
from jaxformer.nn.precision import ComputeDtype, activation_dtype
from jaxformer.nn.quantizer import GumbelQuantizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wav2Vec2Config(WaveArchitecture, PaperArchitecture):
    """The architecture of :class:`Wav2Vec2`; by default the base model.

    Fields that are not listed are as in :class:`~jaxformer.models.gpt2.GPT2Config`, or as in
    :class:`~jaxformer.models.waves.WaveArchitecture`.

    Attributes:
      vocab_size: Number of letters and special tokens; token 0 is the blank of CTC.
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

    def stack_settings(self) -> StackSettings:
        return dataclasses.replace(super().stack_settings(), norm_position=self.norm_position)


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


class Wav2Vec2Encoder(Model):
    """An encoder of speech, without a head.

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

    def features(
        self,
        samples: Float[Array, "B N"],
        lengths: Int[Array, " B"] | None = None,
        deterministic: bool = True,
        *,
        masked: Bool[Array, "B T"] | None = None,
        row_ids: RowIds = None,
    ) -> Frames:
        """Returns the output of the encoder.

        Args:
          samples: Waves, padded with 0; of mean 0 and variance 1 if the model is ``standardized``.
          lengths: Number of samples of each row without padding; all when None.
          deterministic: False enables dropout, and needs ``rngs={"dropout": key}``. Static.
          masked: Frames that a learned vector replaces; none when None.
          row_ids: As in :class:`~jaxformer.Transformer`.
        """
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


class Wav2Vec2(Wav2Vec2Encoder):
    """An encoder of speech that predicts letters, for CTC."""

    config: Wav2Vec2Config

    def setup(self) -> None:
        super().setup()
        c = self.config
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
          samples: As in :meth:`features`; also ``lengths``, ``deterministic``, ``masked`` and
            ``row_ids``.
          lengths: See there.
          deterministic: See there.
          masked: See there.
          row_ids: See there.
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
        """Returns predictions of quantized frames, and the quantized frames.

        Args:
          samples: As in :meth:`features`; also ``lengths``, ``deterministic`` and ``row_ids``.
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
