"""The paper's big model on WMT14 English-German (Tables 2 and 3: 28.4 BLEU).

    python train.py --config=configs/big.py --workdir=runs/big
    jaxformer average --workdir runs/big --last 20
    jaxformer evaluate --workdir runs/big --source newstest2014.en \
        --reference newstest2014.de --output runs/big/newstest2014.de

``jaxformer data wmt14`` downloads the corpus. docs/reproduce.md describes data, hashes, expected
figures and hardware.

Departs from the paper: matmuls in bfloat16, for current accelerators.
Measured: 85 ms per step on one H100, over 30 steps; no whole run yet. The paper's run took 3.5 days
on 8 P100 GPUs, 1.0 s per step.
"""

from jaxformer.config import Config, DataConfig, ModelConfig, TrainingConfig, select
from jaxformer.files import data_directory

DATA = data_directory()

WMT14 = DataConfig(
    corpus="parquet",
    train=f"{DATA}/wmt14-de-en/train-*.parquet",
    valid=f"{DATA}/wmt14-de-en/validation-*.parquet",
)

BIG = Config(
    model=ModelConfig(
        d_model=1024, d_ff=4096, num_heads=16, dropout_rate=0.3, compute_dtype="bfloat16"
    ),
    data=WMT14,
    training=TrainingConfig(
        steps=300_000, checkpoint_every=600, eval_every=6000, keep_checkpoints=20
    ),
)


def get_config(variant: str = ""):
    """Returns the config, for ``--config=configs/big.py``."""
    return select({"": BIG}, variant)
