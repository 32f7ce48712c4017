"""A small Transformer on 31,000 pairs of WMT news, validated on newstest2013.

    python train.py --config=configs/newstest.py --workdir=runs/newstest

``jaxformer data newstest`` downloads the corpus (``docs/data.md``).
The corpus is too small to translate news well: this is a rehearsal of ``base.py`` on a CPU.
Measured: nothing yet.
"""

from jaxformer.config import Config, DataConfig, ModelConfig, TrainingConfig, select
from jaxformer.files import data_directory

DATA = data_directory()

NEWSTEST = Config(
    model=ModelConfig(
        vocab_size=8000,
        d_model=256,
        d_ff=1024,
        num_heads=4,
        num_layers=3,
        dropout_rate=0.3,
        max_length=512,
    ),
    data=DataConfig(
        corpus="text",
        train=f"{DATA}/newstest-en-de/train",
        valid=f"{DATA}/newstest-en-de/valid",
        tokens_per_batch=4096,
        max_length=128,
    ),
    training=TrainingConfig(steps=8000, warmup_steps=2000, checkpoint_every=500, eval_every=2000),
)


def get_config(variant: str = ""):
    """Returns the config, for ``--config=configs/newstest.py``."""
    return select({"": NEWSTEST}, variant)
