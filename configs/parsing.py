"""Constituency parsing (section 6.3, Table 4).

    python train.py --config=configs/parsing.py --workdir=runs/parsing
"""

import os

from jaxformer.config import (
    Config,
    DataConfig,
    ModelConfig,
    SearchConfig,
    TrainingConfig,
    select,
)

DATA = os.environ.get("JAXFORMER_DATA", "../shared/data")

# Section 6.3: "a beam size of 21 and alpha = 0.3", "maximum output length to input length + 300".
SEARCH = SearchConfig(beam_size=21, length_penalty=0.3, max_extra_length=300)

PARSING = Config(
    model=ModelConfig(
        vocab_size=16_000,
        d_model=1024,
        d_ff=4096,
        num_heads=16,
        num_layers=4,
        compute_dtype="bfloat16",
    ),
    data=DataConfig(
        corpus="trees",
        train=f"{DATA}/ptb/wsj-02-21.trees",
        valid=f"{DATA}/ptb/wsj-22.trees",
        batching="packing",
        max_length=512,
    ),
    search=SEARCH,
)

SMALL = Config(
    model=ModelConfig(
        vocab_size=6000,
        d_model=256,
        d_ff=1024,
        num_heads=8,
        num_layers=4,
        dropout_rate=0.3,
        compute_dtype="bfloat16",
    ),
    data=DataConfig(
        corpus="trees",
        train=f"{DATA}/trees/craft/train.trees,{DATA}/trees/wsj-sample/train.trees",
        valid=f"{DATA}/trees/wsj-sample/dev.trees",
        batching="packing",
        tokens_per_batch=4096,
        max_length=256,
    ),
    training=TrainingConfig(
        steps=14_000,
        warmup_steps=2000,
        learning_rate_scale=1.0,
        checkpoint_every=250,
        eval_every=1000,
        eval_sentences=0,
        keep_checkpoints=10,
    ),
    search=SEARCH,
)


def get_config(variant: str = ""):
    """The experiment, for ``--config=configs/parsing.py`` or ``--config=configs/parsing.py:small``."""
    return select({"": PARSING, "small": SMALL}, variant)
