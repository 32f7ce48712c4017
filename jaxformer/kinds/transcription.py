"""Transcription: recordings of speech, and texts that a decoder writes."""

import jax
import jax.numpy as jnp

from jaxformer.data.transcripts import TranscriptsConfig
from jaxformer.kinds.kind import TOKENS, Kind
from jaxformer.models.whisper import Whisper, WhisperConfig


def _inputs(model: WhisperConfig) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Returns the shapes of features and of a target."""
    return jax.ShapeDtypeStruct((1, *model.features_shape), jnp.float32), TOKENS


TRANSCRIPTION = Kind(
    description="a model that transcribes speech",
    commands="jaxformer transcribe",
    use="transcribe with jaxformer transcribe FILE.wav --workdir {workdir}",
    corpora=("transcripts",),
    data=TranscriptsConfig,
    networks=(Whisper,),
    inputs=_inputs,
)
