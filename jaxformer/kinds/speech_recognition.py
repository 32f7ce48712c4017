"""Recognition of speech: a letter, or nothing, in each frame; and pretraining without texts."""

import dataclasses

import jax
import jax.numpy as jnp

from jaxformer.data.speech import SpeechConfig
from jaxformer.kinds.kind import Kind
from jaxformer.models.wav2vec2 import Wav2Vec2, Wav2Vec2Config


def _inputs(model: Wav2Vec2Config) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Returns the shapes of a short recording and of its length."""
    return (
        jax.ShapeDtypeStruct((1, model.shortest), jnp.float32),
        jax.ShapeDtypeStruct((1,), jnp.int32),
    )


SPEECH_RECOGNITION = Kind(
    description="a speech recognizer",
    commands="jaxformer transcribe",
    use="transcribe with jaxformer transcribe FILE.wav --workdir {workdir}",
    corpora=("speech",),
    data=SpeechConfig,
    networks=(Wav2Vec2,),
    inputs=_inputs,
)
SPEECH_PRETRAINING = dataclasses.replace(
    SPEECH_RECOGNITION,
    description="a model of speech without letters",
    commands="training.init_from of a speech recognizer",
    use="train a recognizer with --config.training.init_from={workdir}",
    corpora=("unlabeled_speech",),
    load_tokenizer=None,
)
