"""The paper's base model on WMT14 English-French (Table 2: 38.1 BLEU).

    python train.py --config=configs/base_fr.py --workdir=runs/base_fr
    jaxformer average --workdir runs/base_fr --last 5

Departs from the paper: matrix products in bfloat16, which today's accelerators are built for; and
byte-pair pieces where the paper had word pieces, 32,000 as there.
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
