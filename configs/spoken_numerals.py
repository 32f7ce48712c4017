"""Numerals of a synthesizer in several voices: a small Wav2Vec 2.0 that learns letters with CTC.

    pip install espeakng-loader==0.2.4
    python benchmarks/speak_numerals.py spoken_numerals
    python train.py --config=configs/spoken_numerals.py --workdir=runs/spoken_numerals
    jaxformer transcribe --workdir runs/spoken_numerals spoken_numerals/valid.npz

The speech is synthetic: eSpeak NG says numbers below 1,000, and validation is on voices and numbers
that training has not. No person speaks like this, and the model is of no use for people.
Measured: a word error rate of 3.2 % on voices and numbers that training has not, and 0.6 % of the
letters, after 583 seconds of CPU time. It was 10.6 % with 340 voices of training, not 544, whose
accents were not the accents of three voices of validation; and 35.3 % with 55 voices, two
recordings of a number, not ten, one speed and pitch, 1,600 steps and fewer masks. The variant
"few" learns from a tenth of the recordings, with half of the steps: 17.8 %; 13.2 % if it begins
with "pretrain" of all recordings, which was stopped after half of its 1,300 steps.
"""

import dataclasses

from jaxformer.config import Config, TrainingConfig, select
from jaxformer.data.speech import SpeechConfig
from jaxformer.data.transcripts import TranscriptsConfig
from jaxformer.models.speech_text import SpeechEncoderDecoderConfig
from jaxformer.models.wav2vec2 import Wav2Vec2Config

# Fields of waves that both models have.
_SHARED = (
    "sample_rate",
    "conv_widths",
    "conv_kernels",
    "conv_strides",
    "conv_norm",
    "position_kernel",
    "position_groups",
)

TRAIN = "spoken_numerals/train.npz"
VALID = "spoken_numerals/valid.npz"

SPOKEN = Config(
    model=Wav2Vec2Config(
        vocab_size=24,
        sample_rate=8000,
        conv_widths=(64, 64, 128),
        conv_kernels=(20, 8, 4),
        conv_strides=(10, 4, 4),
        conv_norm="layer",
        position_kernel=16,
        position_groups=16,
        norm_position="pre",
        d_model=128,
        d_ff=256,
        num_heads=4,
        num_layers=2,
        dropout_rate=0.1,
        attention_dropout_rate=0.0,
        mask_rate=0.12,
        mask_length=5,
    ),
    data=SpeechConfig(
        train=TRAIN,
        valid=VALID,
        seconds_per_batch=40.0,
        max_seconds=6.0,
    ),
    training=TrainingConfig(
        steps=2600,
        warmup_steps=100,
        learning_rate=2e-3,
        schedule="linear",
        label_smoothing=0.0,
        weight_decay=0.01,
        log_every=100,
        eval_every=650,
        checkpoint_every=650,
        keep_checkpoints=2,
    ),
)

# Half of the steps.
_BRIEF = dataclasses.replace(SPOKEN.training, steps=1300)

# A tenth of the recordings, for which pretraining helps or does not.
FEW = dataclasses.replace(
    SPOKEN,
    data=dataclasses.replace(SPOKEN.data, train="spoken_numerals/few.npz"),
    training=_BRIEF,
)

# All recordings, without their transcripts.
PRETRAIN = dataclasses.replace(
    SPOKEN,
    model=dataclasses.replace(
        SPOKEN.model,
        head="contrast",
        codebook_entries=40,
        code_size=64,
        contrast_size=64,
        num_negatives=20,
        mask_rate=0.4,
    ),
    data=dataclasses.replace(SPOKEN.data, corpus="unlabeled_speech"),
    training=_BRIEF,
)

# The same encoder with a decoder of tokens. It has not been measured.
DECODER = dataclasses.replace(
    SPOKEN,
    model=SpeechEncoderDecoderConfig(
        **{field: getattr(SPOKEN.model, field) for field in _SHARED},
        encoder_norm_position="pre",
        encoder_d_model=128,
        encoder_d_ff=256,
        encoder_num_heads=4,
        encoder_num_layers=2,
        encoder_attention_dropout_rate=0.0,
        vocab_size=290,
        d_model=128,
        d_ff=256,
        num_heads=4,
        num_layers=2,
        attention_dropout_rate=0.0,
        max_length=32,
    ),
    data=TranscriptsConfig(
        train=TRAIN,
        valid=VALID,
        seconds_per_batch=40.0,
        max_seconds=6.0,
        max_length=32,
    ),
    training=dataclasses.replace(SPOKEN.training, label_smoothing=0.1),
)

SMOKE = dataclasses.replace(
    SPOKEN,
    model=dataclasses.replace(SPOKEN.model, d_model=16, d_ff=16, num_layers=1),
    training=dataclasses.replace(
        SPOKEN.training, steps=4, warmup_steps=2, log_every=2, checkpoint_every=2, eval_every=4
    ),
)


def get_config(variant: str = ""):
    """Returns the config, for ``--config=configs/spoken_numerals.py`` and its variants."""
    return select(
        {
            "": SPOKEN,
            "few": FEW,
            "pretrain": PRETRAIN,
            "decoder": DECODER,
            "smoke": SMOKE,
        },
        variant,
    )
