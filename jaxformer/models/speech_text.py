"""An encoder of waves, Wav2Vec 2.0, and a decoder of texts (Wang et al. 2021)."""

import dataclasses
from typing import Literal

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from jaxformer.fields import setting
from jaxformer.models.array_encoder_decoder import (
    ArrayDecoderArchitecture,
    ArrayEncoderDecoder,
    Encoded,
)
from jaxformer.models.wav2vec2 import Wav2Vec2Config, Wav2Vec2Encoder
from jaxformer.models.waves import WaveArchitecture
from jaxformer.nn.dropout import RowIds
from jaxformer.nn.feed_forward import Activation


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpeechEncoderDecoderConfig(WaveArchitecture, ArrayDecoderArchitecture):
    """The architecture of :class:`SpeechEncoderDecoder`; by default Wav2Vec 2.0 and a GPT-2.

    Fields that are not listed are as in :class:`~jaxformer.models.waves.WaveArchitecture`.

    Attributes:
      encoder_d_model: Width of the encoder, a :class:`~jaxformer.Wav2Vec2` without a head, whose
        other fields also begin with ``encoder_``.
    """

    architecture: Literal["speech_encoder_decoder"] = "speech_encoder_decoder"
    encoder_d_ff: int = setting(3072, "size")
    encoder_num_heads: int = setting(12, "size")
    encoder_num_layers: int = setting(12, "size")
    encoder_norm_position: Literal["post", "pre"] = "post"
    encoder_activation: Activation = "gelu_exact"
    encoder_norm_epsilon: float = setting(1e-5, "positive")
    encoder_dropout_rate: float = setting(0.1, "fraction", may_differ=True)
    encoder_attention_dropout_rate: float = setting(0.1, "fraction", may_differ=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.encoder_section()

    def encoder_section(self) -> Wav2Vec2Config:
        """Returns the architecture of the encoder."""
        waves = {field.name: getattr(self, field.name) for field in _WAVE_FIELDS}
        return Wav2Vec2Config(
            **waves,
            d_model=self.encoder_d_model,
            d_ff=self.encoder_d_ff,
            num_heads=self.encoder_num_heads,
            num_layers=self.encoder_num_layers,
            norm_position=self.encoder_norm_position,
            activation=self.encoder_activation,
            norm_epsilon=self.encoder_norm_epsilon,
            dropout_rate=self.encoder_dropout_rate,
            attention_dropout_rate=self.encoder_attention_dropout_rate,
            compute_dtype=self.compute_dtype,
        )

    @property
    def is_standardized(self) -> bool:
        """True if samples of a recording have mean 0 and variance 1."""
        return self.standardized

    @property
    def longest(self) -> None:
        """None, since recordings may have any length."""
        return None

    def encoder_inputs(
        self,
        samples: Float[Array, "B N"],
        lengths: Int[Array, " B"],
    ) -> tuple[Float[Array, "B N"], Int[Array, " B"]]:
        """Returns what the encoder reads of waves, which are padded with 0.

        A recording that is too short ends with silence.
        """
        return samples, jnp.maximum(lengths, self.shortest)


_WAVE_FIELDS = dataclasses.fields(WaveArchitecture)


class SpeechEncoderDecoder(ArrayEncoderDecoder):
    """Wav2Vec 2.0, and a decoder that writes a text of a recording, such as its translation."""

    config: SpeechEncoderDecoderConfig

    @nn.nowrap
    def _make_encoder(self) -> Wav2Vec2Encoder:
        return Wav2Vec2Encoder(self.config.encoder_section(), self.remat)

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]  # two arrays
        self,
        samples: Float[Array, "B N"],
        lengths: Int[Array, " B"],
        tgt_in: Int[Array, "B T"],
        deterministic: bool = True,
        *,
        row_ids: RowIds = None,
    ) -> Float[Array, "B T V"]:
        """Returns logits of the next token at every position, float32.

        Args:
          samples: Waves, padded with 0; of mean 0 and variance 1 if the model is ``standardized``.
          lengths: Number of samples of each row without padding.
          tgt_in: Token ids shifted right: beginning of sentence first.
          deterministic: False enables dropout, and needs ``rngs={"dropout": key}``. Static.
          row_ids: Index of each row in the global batch, for dropout; 0, 1, ... when None.
        """
        arrays = (samples, lengths)
        return self._logits(arrays, tgt_in, deterministic=deterministic, row_ids=row_ids)

    def encode(
        self,
        samples: Float[Array, "B N"],
        lengths: Int[Array, " B"],
        *,
        deterministic: bool = True,
        row_ids: RowIds = None,
    ) -> Encoded:
        """Returns the features of the frames."""
        frames = self.encoder.features(samples, lengths, deterministic, row_ids=row_ids)
        return Encoded(self._project(frames.x), frames.real)
