"""The paper's base model on WMT14 English-German (sections 5 and 6.1; Table 2: 27.3 BLEU).

    python train.py --config=configs/base.py --workdir=runs/base
    jaxformer average --workdir runs/base --last 5
    jaxformer evaluate --workdir runs/base --source newstest2014.en \
        --reference newstest2014.de --output runs/base/newstest2014.de

``jaxformer data wmt14`` downloads the corpus. docs/reproduce.md describes data, hashes, expected
figures and hardware.

Your own parallel text, ``my/train.en`` and ``my/train.de``, needs no other config:

    python train.py --config=configs/base.py:small --workdir=runs/mine --config.data.train=my/train

In the variant ``base:small``, vocabulary, batch, warm-up and steps follow from the size of the
text, and 5 % of it are for validation. ``base:tiny`` is a small model with fixed sizes. Both train
on a CPU.

Measured with ``base:small`` and 5,000 pairs of Tatoeba: 11.0 sacreBLEU after 864 steps, on 500
validation sentences.

Departs from the paper: matmuls in bfloat16, for current accelerators.
Measured: 37 ms per step on one H100, over 30 steps with a vocabulary of 32,000 and sentences of 256
tokens; no whole run yet. The paper's run took 12 hours on 8 P100 GPUs, 0.4 s per step.
"""

import dataclasses

from jaxformer.config import Config, DataConfig, ModelConfig, TrainingConfig, select
from jaxformer.files import data_directory
from jaxformer.tasks.small_corpus import fit_to_corpus

DATA = data_directory()

WMT14 = DataConfig(
    corpus="parquet",
    train=f"{DATA}/wmt14-de-en/train-*.parquet",
    valid=f"{DATA}/wmt14-de-en/validation-*.parquet",
)

BASE = Config(model=ModelConfig(compute_dtype="bfloat16"), data=WMT14)

TINY = Config(
    model=ModelConfig(vocab_size=8000, d_model=128, d_ff=256, num_heads=4, num_layers=2),
    data=dataclasses.replace(WMT14, tokens_per_batch=2048, max_length=128),
    training=TrainingConfig(steps=4000, warmup_steps=1000, checkpoint_every=500, eval_every=500),
)

# adapt_config replaces the vocabulary, the batch and the numbers of steps.
SMALL = Config(
    model=dataclasses.replace(TINY.model, dropout_rate=0.2),
    data=DataConfig(
        corpus="text",
        train="",  # your own: --config.data.train=my/train
        valid="5%",
        batching="packing",
        tokens_per_batch=2048,
        max_length=128,
    ),
    training=TrainingConfig(
        steps=4000,
        warmup_steps=1,
        learning_rate=5e-3,
        optimizer="muon",
        schedule="linear",
        weight_decay=0.05,
    ),
)


def get_config(variant: str = ""):
    """Returns the config, for ``base``, ``base:tiny`` or ``base:small``."""
    return select({"": BASE, "tiny": TINY, "small": SMALL}, variant)


def adapt_config(config: Config, variant: str, given):
    """Returns the config after the overrides of the ``given`` fields."""
    return fit_to_corpus(config, given) if variant == "small" else config
