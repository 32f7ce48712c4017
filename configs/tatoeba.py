"""Everyday sentences, English to German: a model of 7 million parameters.

    jaxformer data tatoeba
    python train.py --config=configs/tatoeba.py --workdir=runs/tatoeba

``docs/data.md`` has origin and license of the corpus. The model has half as many layers as the
paper's base model, of half the width.
Measured: 47.4 sacreBLEU on 3,000 validation sentences with a beam of 4. Two shared CPU cores train
on 9,000 source and target tokens per second, of 64 million in total.
"""

from jaxformer.config import (
    Config,
    DataConfig,
    ModelConfig,
    TrainingConfig,
    select,
)
from jaxformer.files import data_directory

DATA = data_directory()

TATOEBA = Config(
    model=ModelConfig(
        vocab_size=6000,
        d_model=256,
        d_ff=1024,
        num_heads=4,
        num_layers=3,
        dropout_rate=0.15,
        max_length=256,
        compute_dtype="bfloat16",
    ),
    data=DataConfig(
        corpus="text",
        train=f"{DATA}/tatoeba-en-de/train",
        valid=f"{DATA}/tatoeba-en-de/valid",
        batching="packing",
        tokens_per_batch=8192,
        max_length=128,
    ),
    training=TrainingConfig(
        steps=4000,
        warmup_steps=200,
        optimizer="muon",
        schedule="linear",
        weight_decay=0.05,
        log_every=20,
        checkpoint_every=100,
        eval_every=400,
        keep_checkpoints=2,
    ),
)


def get_config(variant: str = ""):
    """Returns the config, for ``--config=configs/tatoeba.py``."""
    return select({"": TATOEBA}, variant)
