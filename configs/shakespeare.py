"""Plays of Shakespeare, character by character: a decoder-only language model.

    python train.py --config=configs/shakespeare.py --workdir=runs/shakespeare
    jaxformer generate --workdir runs/shakespeare --prompt "ROMEO:"

``jaxformer data shakespeare`` downloads the text (``docs/data.md``), 1.1 million characters. The
last tenth is for validation. The variant ``configs/shakespeare.py:bpe`` has 1,024 BPE tokens, and
``:smoke`` takes only a few steps. The model has 3.2 million parameters, and training takes 3.62e14
FLOPs, counted by :func:`~jaxformer.training.flops.language_model_flops`.
Measured: 1.478 nats per character (2.133 bits). The run took 51 minutes on two cores of an Intel
Xeon with AMX that were shared with other work.
"""

import dataclasses

from jaxformer.config import Config, ModelConfig, StreamConfig, TrainingConfig, select
from jaxformer.files import data_directory
from jaxformer.search import Sampling
from jaxformer.tasks.small_text import fit_vocabulary

DATA = data_directory()

SHAKESPEARE = Config(
    model=ModelConfig(
        vocab_size=69,
        d_model=256,
        d_ff=1024,
        num_heads=4,
        num_layers=4,
        dropout_rate=0.15,
        attention_dropout_rate=0.1,
        norm_position="pre",
        activation="gelu",
        max_length=256,
        compute_dtype="bfloat16",
    ),
    data=StreamConfig(file=f"{DATA}/tinyshakespeare/input.txt", length=256, rows=32),
    training=TrainingConfig(
        steps=2000,
        warmup_steps=50,
        label_smoothing=0.0,
        clip_norm=1.0,
        optimizer="muon",
        schedule="linear",
        weight_decay=0.1,
        log_every=50,
        eval_every=200,
        checkpoint_every=200,
        keep_checkpoints=2,
    ),
    search=Sampling(num_samples=1, temperature=0.8),
)

BPE = dataclasses.replace(
    SHAKESPEARE,
    model=dataclasses.replace(SHAKESPEARE.model, vocab_size=1024),
    data=dataclasses.replace(SHAKESPEARE.data, tokens="bpe", length=128),
)

SMOKE = dataclasses.replace(
    SHAKESPEARE,
    model=dataclasses.replace(SHAKESPEARE.model, d_model=32, d_ff=64, num_layers=1, max_length=64),
    data=dataclasses.replace(SHAKESPEARE.data, length=64, rows=8),
    training=dataclasses.replace(
        SHAKESPEARE.training, steps=4, warmup_steps=2, log_every=2, checkpoint_every=2, eval_every=4
    ),
)


def get_config(variant: str = ""):
    """Returns the config, for ``--config=configs/shakespeare.py`` and its variants."""
    return select({"": SHAKESPEARE, "bpe": BPE, "smoke": SMOKE}, variant)


def adapt_config(config: Config, variant: str, given):
    """Returns the config, for a text of your own with its vocabulary."""
    own = {"data.file", "data.valid", "data.separator", "data.tokens"}
    return config if own.isdisjoint(given) else fit_vocabulary(config, given)
