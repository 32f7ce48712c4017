"""A language model of number words that learns to read handwritten numbers (Flamingo).

    python -m jaxformer.data.number_files --directory=runs
    python train.py --config=configs/flamingo.py:text --workdir=runs/flamingo_text --config.data.file=runs/numbers.txt
    python train.py --config=configs/flamingo.py --workdir=runs/flamingo --config.training.init_from=runs/flamingo_text
    jaxformer caption --workdir runs/flamingo --images runs/test.npz --examples runs/examples.npz

The variant "text" trains a language model of characters on the words of 900 numbers. The other one
freezes it, and trains an encoder of pictures, a resampler and gated blocks on pictures of
three digits of scikit-learn (``pip install '.[vision]'``).
Measured: 93 of the 100 test numbers are read without a mistake, after no example and after two. The
language model took 110 seconds of one core of an AMD EPYC, and the rest 396.
"""  # noqa: E501

import dataclasses
from typing import Any

from jaxformer.config import Config, StreamConfig, TrainingConfig, select
from jaxformer.data.interleaved import InterleavedConfig
from jaxformer.data.number_files import SEPARATOR
from jaxformer.models.flamingo import FlamingoConfig
from jaxformer.models.llama import LlamaConfig
from jaxformer.search import BeamSearch

# Of the language model, which both variants have.
SIZES: dict[str, Any] = {
    "vocab_size": 27,
    "d_model": 96,
    "d_ff": 192,
    "num_heads": 4,
    "num_layers": 4,
    "max_length": 192,
}
# All of its parameters.
LANGUAGE_MODEL = "embedding,output_embedding,decoder/layers,decoder/norm"

TEXT = Config(
    model=LlamaConfig(**SIZES),
    data=StreamConfig(file="", separator=SEPARATOR, length=96, rows=32),
    training=TrainingConfig(
        steps=600,
        warmup_steps=50,
        learning_rate=3e-3,
        schedule="linear",
        label_smoothing=0.0,
        log_every=100,
        eval_every=300,
        checkpoint_every=300,
        keep_checkpoints=2,
    ),
    search=BeamSearch(beam_size=4),
)

PICTURES = Config(
    model=FlamingoConfig(
        **SIZES,
        picture_token=6,  # "#", after four special tokens, a line break and a space
        gated_every=1,
        height=8,
        width=24,
        channels=1,
        pixel_mean="0.5",
        pixel_std="0.5",
        patch_size=2,
        vision_d_model=64,
        vision_d_ff=128,
        vision_num_heads=4,
        vision_num_layers=3,
        num_latents=8,
        resampler_d_ff=128,
        resampler_num_heads=4,
        resampler_num_layers=2,
        resampler_d_k=16,
    ),
    data=InterleavedConfig(
        source="handwritten_numbers",
        train="train",
        valid="test",
        pictures=3,
        length=112,
        rows=24,
        shift=0.7,
        rotation=4.0,
        zoom=0.08,
        shear=0.2,
        warp=0.5,
    ),
    training=TrainingConfig(
        freeze=LANGUAGE_MODEL,
        steps=1000,
        warmup_steps=100,
        learning_rate=1e-2,
        optimizer="muon",
        schedule="cosine",
        weight_decay=0.05,
        clip_norm=1.0,
        label_smoothing=0.0,
        log_every=100,
        eval_every=500,
        checkpoint_every=500,
        keep_checkpoints=2,
    ),
    search=BeamSearch(beam_size=4),
)

_SHORT = {"steps": 4, "warmup_steps": 2, "log_every": 2, "checkpoint_every": 2, "eval_every": 4}
SMOKE = dataclasses.replace(
    PICTURES,
    model=dataclasses.replace(
        PICTURES.model,
        picture_token=26,
        d_model=16,
        d_ff=16,
        num_layers=2,
        vision_d_model=16,
        vision_d_ff=16,
        vision_num_layers=1,
        resampler_d_ff=16,
        resampler_num_layers=1,
    ),
    data=dataclasses.replace(PICTURES.data, rows=4),
    training=dataclasses.replace(PICTURES.training, **_SHORT),
)


def get_config(variant: str = ""):
    """Returns the config, for ``--config=configs/flamingo.py`` and its variants."""
    return select({"": PICTURES, "text": TEXT, "smoke": SMOKE}, variant)
