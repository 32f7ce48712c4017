"""A small language model of your own text, on a CPU.

    jaxformer train gpt:small --workdir runs/mine --config.data.file=my/text.txt
    jaxformer generate --workdir runs/mine

In a clone, the first command is

    python train.py --config=configs/gpt.py --workdir=runs/gpt --config.data.file=my/text.txt

The text is one UTF-8 file of at least 100 characters. Vocabulary, length of the rows, steps and
warm-up follow from it. The tokens are characters, or BPE tokens with ``--config.data.tokens=bpe``.
The last tenth is for validation. ``gpt`` and ``gpt:small`` are the same.
Measured: 1.740 nats per character (2.510 bits) on the last tenth of tinyshakespeare, after 1,000
steps in 26 minutes on two CPU cores that were shared with much other work.
"""

from jaxformer.config import Config, ModelConfig, StreamConfig, TrainingConfig, select
from jaxformer.search import Sampling
from jaxformer.tasks.small_text import fit_to_text

# adapt_config replaces the vocabulary, the length of the rows and the numbers of steps.
SMALL = Config(
    model=ModelConfig(
        vocab_size=100,
        d_model=128,
        d_ff=512,
        num_heads=4,
        num_layers=4,
        dropout_rate=0.15,
        attention_dropout_rate=0.1,
        norm_position="pre",
        activation="gelu",
        max_length=128,
    ),
    data=StreamConfig(
        file="",  # your own: --config.data.file=my/text.txt
        length=128,
        rows=32,
    ),
    training=TrainingConfig(
        steps=2000,
        warmup_steps=1,
        learning_rate=5e-3,
        label_smoothing=0.0,
        clip_norm=1.0,
        optimizer="muon",
        schedule="linear",
        weight_decay=0.1,
        keep_checkpoints=2,
    ),
    search=Sampling(num_samples=1, temperature=0.8),
)


def get_config(variant: str = ""):
    """Returns the config, for ``--config=configs/gpt.py`` or ``gpt:small``."""
    return select({"": SMALL, "small": SMALL}, variant)


def adapt_config(config: Config, variant: str, given):
    """Returns the config after the overrides of the ``given`` fields."""
    return fit_to_text(config, given)
