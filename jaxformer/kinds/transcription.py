"""Transcription: recordings of speech, and texts that a decoder writes."""

from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxformer.data.transcripts import TranscriptsConfig
from jaxformer.kinds.kind import TOKENS, Kind
from jaxformer.models.speech_text import SpeechEncoderDecoder
from jaxformer.models.whisper import Whisper


@runtime_checkable  # for the checks of types in tests
class RecordingReader(Protocol):
    """Properties of the sections of all models of this kind, besides the fields of a decoder."""

    @property
    def sample_rate(self) -> int:
        """Samples per second."""
        ...

    @property
    def is_standardized(self) -> bool:
        """True if samples of a recording have mean 0 and variance 1."""
        ...

    @property
    def shortest(self) -> int:
        """Samples of the shortest input; shorter recordings are padded with silence."""
        ...

    @property
    def longest(self) -> int | None:
        """Samples of the longest input; None if it may have any length."""
        ...

    def encoder_inputs(
        self,
        samples: Float[Array, "B N"],
        lengths: Int[Array, " B"],
    ) -> tuple[Array, ...]:
        """Returns what the encoder reads of waves, which are padded with 0."""
        ...


def _inputs(model: RecordingReader) -> tuple[Any, ...]:
    """Returns the shapes of what the encoder reads of a short recording, and of a target."""
    samples = jax.ShapeDtypeStruct((1, model.shortest), jnp.float32)
    lengths = jax.ShapeDtypeStruct((1,), jnp.int32)
    return *jax.eval_shape(model.encoder_inputs, samples, lengths), TOKENS


TRANSCRIPTION = Kind(
    description="a model that transcribes speech",
    commands="jaxformer transcribe",
    use="transcribe with jaxformer transcribe FILE.wav --workdir {workdir}",
    corpora=("transcripts",),
    data=TranscriptsConfig,
    networks=(Whisper, SpeechEncoderDecoder),
    inputs=_inputs,
)
