"""The paper's base model on WMT14 English-French (Table 2: 38.1 BLEU).

    python train.py --config=configs/base_fr.py --workdir=runs/base_fr
    jaxformer average --workdir runs/base_fr --last 5
    jaxformer evaluate --workdir runs/base_fr --source newstest2014_fr.en \
        --reference newstest2014.fr --output runs/base_fr/newstest2014.fr

docs/reproduce.md has all of it: data, hashes, expected figures, what it takes.

Departs from the paper: matrix products in bfloat16, which today's accelerators are built for; and
byte-pair pieces where the paper had word pieces, 32,000 as there. TensorFlow Datasets has 40.8
million pairs, the paper counts 36.
Measured: nothing yet.
"""

from jaxformer.config import Config, DataConfig, ModelConfig, select

BASE_FR = Config(
    model=ModelConfig(vocab_size=32_000, compute_dtype="bfloat16"),
    data=DataConfig(builder="wmt14_translate/fr-en", target_language="fr"),
)


def get_config(variant: str = ""):
    """The experiment, for ``--config=configs/base_fr.py``."""
    return select({"": BASE_FR}, variant)
