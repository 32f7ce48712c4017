"""English number words to German ones: "two hundred and seven" -> "zweihundertsieben".

    python train.py --config=configs/numerals.py --workdir=runs/numerals

The corpus is generated, so this runs anywhere without a download. The test numbers are not in the
training split. The variant ``configs/numerals.py:smoke`` takes only a few steps, and
``configs/numerals.py:zh`` reads Chinese numbers: 二百零七 -> "two hundred and seven". The variant
``masked`` predicts masked characters of Chinese numbers, from files:

    python -m jaxformer.data.numerals train --languages zh --directory numerals
    python -m jaxformer.data.numerals held_out --languages zh --directory numerals
    python train.py --config=configs/numerals.py:masked --workdir=runs/masked

Measured: 98.4% of 500 unseen numbers correct, in a ``make demo`` of 3 min 21 s on two CPU cores.
The variant ``zh`` has 99 of the first 100 unseen numbers correct, after two minutes of one core.
The variant ``masked`` has a perplexity of 3.00 for masked characters of unseen numbers, after 31
seconds of two cores.
"""

import dataclasses

from jaxformer.config import (
    Config,
    DataConfig,
    EncoderConfig,
    LabeledConfig,
    ModelConfig,
    TrainingConfig,
    select,
)

NUMERALS = Config(
    model=ModelConfig(
        vocab_size=384,
        d_model=128,
        d_ff=512,
        num_heads=4,
        num_layers=2,
        dropout_rate=0.1,
        max_length=128,
    ),
    data=DataConfig(
        corpus="numerals",
        train="train",
        valid="held_out",
        batching="packing",
        tokens_per_batch=2048,
        max_length=64,
    ),
    training=TrainingConfig(
        steps=1500, warmup_steps=400, checkpoint_every=500, eval_every=500, eval_sentences=100
    ),
)

CHINESE = dataclasses.replace(
    NUMERALS,
    data=dataclasses.replace(NUMERALS.data, source_language="zh", target_language="en"),
    training=dataclasses.replace(
        NUMERALS.training, steps=400, warmup_steps=200, checkpoint_every=200, eval_every=400
    ),
)

# An encoder that predicts masked characters of Chinese numbers.
MASKED = Config(
    model=EncoderConfig(
        vocab_size=280,
        d_model=64,
        d_ff=256,
        num_heads=4,
        num_layers=2,
        dropout_rate=0.0,
        norm_position="pre",
        activation="gelu",
        max_length=64,
    ),
    data=LabeledConfig(
        corpus="masked",
        mask_rate=0.15,
        train="numerals/train.zh",
        valid="numerals/held_out.zh",
        tokens_per_batch=2048,
        max_length=32,
    ),
    training=TrainingConfig(
        steps=600,
        warmup_steps=60,
        learning_rate=2e-3,
        schedule="linear",
        label_smoothing=0.0,
        eval_every=300,
        checkpoint_every=300,
        best_metric="loss",
    ),
)

SMOKE = dataclasses.replace(
    NUMERALS,
    training=TrainingConfig(
        steps=4, warmup_steps=2, log_every=2, checkpoint_every=2, eval_every=4, eval_sentences=8
    ),
)


def get_config(variant: str = ""):
    """Returns the config, for ``--config=configs/numerals.py`` or ``configs/numerals.py:zh``."""
    return select({"": NUMERALS, "zh": CHINESE, "masked": MASKED, "smoke": SMOKE}, variant)
