"""The paper's base model on WMT14 English-French (Table 2: 38.1 BLEU).

    python train.py --config=configs/base_fr.py --workdir=runs/base_fr
    jaxformer average --workdir runs/base_fr --last 5
    jaxformer evaluate --workdir runs/base_fr --source newstest2014_fr.en \
        --reference newstest2014.fr --output runs/base_fr/newstest2014.fr

``jaxformer data wmt14-fr`` downloads the corpus. docs/reproduce.md describes data, hashes, expected
figures and hardware.

Departs from the paper: matmuls in bfloat16, for current accelerators; 32,000 BPE tokens
instead of 32,000 word pieces; 40.8 million sentence pairs instead of 36 million.
Measured: nothing yet.
"""

from jaxformer.config import Config, DataConfig, ModelConfig, select
from jaxformer.files import data_directory

DATA = data_directory()

WMT14 = DataConfig(
    corpus="parquet",
    builder="wmt14_translate/fr-en",
    target_language="fr",
    train=f"{DATA}/wmt14-fr-en/train-*.parquet",
    valid=f"{DATA}/wmt14-fr-en/validation-*.parquet",
)

BASE_FR = Config(
    model=ModelConfig(vocab_size=32_000, compute_dtype="bfloat16"),
    data=WMT14,
)


def get_config(variant: str = ""):
    """Returns the config, for ``--config=configs/base_fr.py``."""
    return select({"": BASE_FR}, variant)
