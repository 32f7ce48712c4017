"""The paper's big model on WMT14 English-French (Table 2: 41.8 BLEU); dropout 0.1 (section 6.1).

    python train.py --config=configs/big_fr.py --workdir=runs/big_fr
    jaxformer average --workdir runs/big_fr --last 20
    jaxformer evaluate --workdir runs/big_fr --source newstest2014_fr.en \
        --reference newstest2014.fr --output runs/big_fr/newstest2014.fr

``jaxformer data wmt14-fr`` downloads the corpus. docs/reproduce.md describes data, hashes, expected
figures and hardware.

Departs from the paper: matmuls in bfloat16, for current accelerators; 32,000 BPE tokens
instead of 32,000 word pieces; 40.8 million sentence pairs instead of 36 million.
Measured: nothing yet.
"""

from jaxformer.config import Config, DataConfig, ModelConfig, TrainingConfig, select
from jaxformer.files import data_directory

DATA = data_directory()

WMT14 = DataConfig(
    corpus="parquet",
    builder="wmt14_translate/fr-en",
    target_language="fr",
    train=f"{DATA}/wmt14-fr-en/train-*.parquet",
    valid=f"{DATA}/wmt14-fr-en/validation-*.parquet",
)

BIG_FR = Config(
    model=ModelConfig(
        vocab_size=32_000,
        d_model=1024,
        d_ff=4096,
        num_heads=16,
        dropout_rate=0.1,
        compute_dtype="bfloat16",
    ),
    data=WMT14,
    training=TrainingConfig(
        steps=300_000, checkpoint_every=600, eval_every=6000, keep_checkpoints=20
    ),
)


def get_config(variant: str = ""):
    """Returns the config, for ``--config=configs/big_fr.py``."""
    return select({"": BIG_FR}, variant)
