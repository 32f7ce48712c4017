"""Everyday sentences, English to German, by recurrent networks with attention, as before 2017.

    jaxformer data tatoeba
    python train.py --config=configs/recurrent.py --workdir=runs/recurrent

``docs/data.md`` has origin and license of the corpus. The model is Bahdanau's: a bidirectional GRU,
and a GRU with additive attention. ``recurrent.py:transformer`` is a Transformer for as much time of
one CPU core, to compare with; ``recurrent.py:numerals`` is a small one for number words.
Measured: 20.1 BLEU on the validation sentences after 2.5 minutes of one core, and the Transformer
19.8 after 2.6 (``docs/claims_order.md``). ``recurrent.py:numerals`` has not been run to its end.
"""

import dataclasses

from jaxformer.config import (
    Config,
    DataConfig,
    ModelConfig,
    RecurrentConfig,
    TrainingConfig,
    select,
)
from jaxformer.files import data_directory

DATA = data_directory()

RECURRENT = Config(
    model=RecurrentConfig(
        vocab_size=4000,
        d_model=128,
        hidden_size=256,
        dropout_rate=0.1,
        max_length=256,
    ),
    data=DataConfig(
        corpus="text",
        train=f"{DATA}/tatoeba-en-de/train",
        valid=f"{DATA}/tatoeba-en-de/valid",
        batching="packing",
        tokens_per_batch=4096,
        max_length=32,
    ),
    training=TrainingConfig(
        steps=170,
        warmup_steps=50,
        optimizer="muon",
        schedule="linear",
        weight_decay=0.05,
        log_every=20,
        checkpoint_every=85,
        eval_every=170,
        eval_sentences=200,
        keep_checkpoints=2,
    ),
)

TRANSFORMER = dataclasses.replace(
    RECURRENT,
    model=ModelConfig(
        vocab_size=4000,
        d_model=128,
        d_ff=512,
        num_heads=4,
        num_layers=2,
        dropout_rate=0.1,
        max_length=256,
    ),
    training=dataclasses.replace(
        RECURRENT.training, steps=340, checkpoint_every=85, eval_every=340
    ),
)

NUMERALS = dataclasses.replace(
    RECURRENT,
    model=dataclasses.replace(
        RECURRENT.model, vocab_size=384, d_model=64, hidden_size=128, max_length=128
    ),
    data=DataConfig(
        corpus="numerals",
        train="train",
        valid="held_out",
        batching="packing",
        tokens_per_batch=2048,
        max_length=64,
    ),
    training=dataclasses.replace(
        RECURRENT.training, steps=600, checkpoint_every=200, eval_every=600
    ),
)


def get_config(variant: str = ""):
    """Returns the config, for ``--config=configs/recurrent.py`` or ``recurrent.py:numerals``."""
    return select({"": RECURRENT, "transformer": TRANSFORMER, "numerals": NUMERALS}, variant)
