"""A student as Firefox's: fast on CPUs, with a deep encoder and a shallow recurrent decoder.

    jaxformer data tatoeba
    python train.py --config=configs/student.py --workdir=runs/student

It has the sizes of Bergamot's "tiny" models. ``jaxformer distill`` trains it on the translations of
a larger model; see ``docs/distillation.md``. ``student.py:numerals`` is a small one for number
words, and ``student.py:firefox`` fine-tunes a model of Firefox on your own sentences; see
``docs/marian.md``.
Measured: ``student.py:numerals`` spells 99 of 100 unseen numbers correctly after 500 steps; the
default itself has not been trained yet, but similar ones in ``docs/distillation.md`` have.
"""

import dataclasses

from jaxformer.config import Config, DataConfig, StudentConfig, TrainingConfig, select
from jaxformer.files import data_directory
from jaxformer.search import BeamSearch

DATA = data_directory()

STUDENT = Config(
    model=StudentConfig(
        vocab_size=6000,
        d_model=256,
        d_ff=1536,
        num_heads=8,
        num_layers=6,
        num_decoder_layers=2,
        positions="tensor2tensor",
        biases=True,
        dropout_rate=0.0,
        max_length=512,
    ),
    data=DataConfig(
        corpus="text",
        train=f"{DATA}/tatoeba-en-de/train",
        valid=f"{DATA}/tatoeba-en-de/valid",
        tokens_per_batch=4096,
        max_length=128,
    ),
    training=TrainingConfig(steps=8000, warmup_steps=1000, checkpoint_every=500, eval_every=1000),
    search=BeamSearch(beam_size=1, penalty="power", length_penalty=1.0),
)

NUMERALS = dataclasses.replace(
    STUDENT,
    model=dataclasses.replace(
        STUDENT.model, vocab_size=384, d_model=128, d_ff=512, num_layers=3, max_length=128
    ),
    data=DataConfig(
        corpus="numerals",
        train="train",
        valid="held_out",
        batching="packing",
        tokens_per_batch=2048,
        max_length=64,
    ),
    training=TrainingConfig(
        steps=600, warmup_steps=400, checkpoint_every=200, eval_every=200, eval_sentences=100
    ),
)

# An English-Portuguese model, imported to runs/enpt.
FIREFOX = dataclasses.replace(
    STUDENT,
    model=dataclasses.replace(STUDENT.model, vocab_size=32_002),
    data=dataclasses.replace(
        STUDENT.data,
        target_language="pt",
        train="",  # your own: --config.data.train=my/train
        valid="5%",
        tokens_per_batch=2048,
    ),
    training=TrainingConfig(
        steps=100,
        init_from="runs/enpt",
        warmup_steps=10,
        schedule="linear",
        learning_rate=2e-4,
        label_smoothing=0.0,
        checkpoint_every=50,
        eval_every=50,
    ),
)


def get_config(variant: str = ""):
    """Returns the config, for ``--config=configs/student.py`` or ``student.py:numerals``."""
    return select({"": STUDENT, "numerals": NUMERALS, "firefox": FIREFOX}, variant)
