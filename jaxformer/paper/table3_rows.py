"""The 20 rows of Table 3: their changes to the base model, and the paper's results."""

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from jaxformer.config import Config, DataConfig, ModelConfig, TrainingConfig
from jaxformer.errors import UserError
from jaxformer.files import data_directory


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A row of Table 3: changed fields, in the paper's sizes, and results on newstest2013."""

    model: dict[str, Any] = dataclasses.field(default_factory=dict)
    training: dict[str, Any] = dataclasses.field(default_factory=dict)
    longer: int = 1  # factor of the number of training steps
    perplexity: float  # per word piece
    bleu: float
    parameters: int | None = None  # in millions; the paper prints none for the size of base


_BIG = {"d_model": 1024, "d_ff": 4096, "num_heads": 16, "dropout_rate": 0.3}
ROWS = {
    "base": Row(perplexity=4.92, bleu=25.8, parameters=65),
    "A1": Row(model={"num_heads": 1}, perplexity=5.29, bleu=24.9),
    "A2": Row(model={"num_heads": 4}, perplexity=5.00, bleu=25.5),
    "A3": Row(model={"num_heads": 16}, perplexity=4.91, bleu=25.8),
    "A4": Row(model={"num_heads": 32}, perplexity=5.01, bleu=25.4),
    "B1": Row(model={"d_k": 16}, perplexity=5.16, bleu=25.1, parameters=58),
    "B2": Row(model={"d_k": 32}, perplexity=5.01, bleu=25.4, parameters=60),
    "C1": Row(model={"num_layers": 2}, perplexity=6.11, bleu=23.7, parameters=36),
    "C2": Row(model={"num_layers": 4}, perplexity=5.19, bleu=25.3, parameters=50),
    "C3": Row(model={"num_layers": 8}, perplexity=4.88, bleu=25.5, parameters=80),
    "C4": Row(model={"d_model": 256}, perplexity=5.75, bleu=24.5, parameters=28),
    "C5": Row(model={"d_model": 1024}, perplexity=4.66, bleu=26.0, parameters=168),
    "C6": Row(model={"d_ff": 1024}, perplexity=5.12, bleu=25.4, parameters=53),
    "C7": Row(model={"d_ff": 4096}, perplexity=4.75, bleu=26.2, parameters=90),
    "D1": Row(model={"dropout_rate": 0.0}, perplexity=5.77, bleu=24.6),
    "D2": Row(model={"dropout_rate": 0.2}, perplexity=4.95, bleu=25.5),
    "D3": Row(training={"label_smoothing": 0.0}, perplexity=4.67, bleu=25.3),
    "D4": Row(training={"label_smoothing": 0.2}, perplexity=5.47, bleu=25.7),
    "E": Row(model={"positions": "learned"}, perplexity=4.92, bleu=25.7),
    "big": Row(model=_BIG, longer=3, perplexity=4.33, bleu=26.4, parameters=213),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """Config of all rows, except for their changes, and divisors of the paper's sizes."""

    config: Callable[[], Config]  # made when asked for, since data folders can change
    width: int = 1  # divides d_model, d_ff, d_k and d_v, but not the number of heads
    depth: int = 1  # divides the number of layers


def _paper() -> Config:
    """WMT14 and the paper's sizes, with matmuls for current accelerators."""
    corpus = data_directory() / "wmt14-de-en"
    return Config(
        model=ModelConfig(compute_dtype="bfloat16"),
        data=DataConfig(
            corpus="parquet",
            train=f"{corpus}/train-*.parquet",
            valid=f"{corpus}/validation-*.parquet",
        ),
        training=TrainingConfig(eval_every=15_000),
    )


def _small() -> Config:
    """Sentences from Tatoeba, for a few hours on a CPU."""
    corpus = data_directory() / "tatoeba-en-de"
    return Config(
        model=ModelConfig(
            vocab_size=6000,
            max_length=256,
            compute_dtype="bfloat16",
        ),
        data=DataConfig(
            corpus="text",
            train=f"{corpus}/train",
            valid=f"{corpus}/valid",
            batching="packing",
            tokens_per_batch=2048,
            max_length=64,
        ),
        training=TrainingConfig(
            steps=2000,
            warmup_steps=400,
            checkpoint_every=500,
            eval_every=10_000,
        ),
    )


def _smoke() -> Config:
    """Number words and a few steps, for tests."""
    return Config(
        model=ModelConfig(vocab_size=300, max_length=128),
        data=DataConfig(
            corpus="numerals",
            valid="held_out",
            batching="packing",
            tokens_per_batch=256,
            max_length=64,
        ),
        training=TrainingConfig(
            steps=4,
            warmup_steps=2,
            log_every=2,
            checkpoint_every=2,
            eval_every=4,
        ),
    )


SCALES = {
    "paper": Scale(config=_paper),
    "small": Scale(config=_small, width=4, depth=2),
    "smoke": Scale(config=_smoke, width=16, depth=2),
}


def row_config(
    row: str,
    scale: str = "paper",
    *,
    steps: int | None = None,
    seed: int = 0,
) -> Config:
    """Returns the config of "base", with ``steps`` or the scale's, and the changes of a row."""
    if row not in ROWS:
        raise UserError(f"unknown row {row!r} of Table 3; known rows: {', '.join(ROWS)}")
    change = ROWS[row]
    size = SCALES[scale]
    base = size.config()

    # The row in the paper's sizes, divided by the scale.
    paper = ModelConfig()
    sizes = {
        "num_layers": paper.num_layers,
        "d_model": paper.d_model,
        "d_ff": paper.d_ff,
        **change.model,
    }
    for name in ("d_model", "d_ff", "d_k", "d_v"):
        if name in sizes:
            sizes[name] //= size.width
    sizes["num_layers"] //= size.depth
    model = dataclasses.replace(base.model, **sizes)

    if steps is None:
        steps = base.training.steps
    training = dataclasses.replace(
        base.training,
        **change.training,
        steps=change.longer * steps,
        seed=seed,
        eval_sentences=0,
        keep_checkpoints=1,
    )
    return dataclasses.replace(base, model=model, training=training)


def describe(row: str, scale: str) -> str:
    """Describes the changes of a row, in the paper's symbols and the scale's sizes: "h 1"."""
    base = row_config("base", scale)
    config = row_config(row, scale)

    values = {}
    changes = {}
    for symbol, value in _SYMBOLS.items():
        values[symbol] = value(config)
        if value(config) != value(base):
            changes[symbol] = value(config)

    # The row "base" has no changes: all its values describe it.
    shown = changes or values
    return ", ".join(f"{symbol} {value}" for symbol, value in shown.items())


_SYMBOLS = {
    "N": attrgetter("model.num_layers"),
    "d_model": attrgetter("model.d_model"),
    "d_ff": attrgetter("model.d_ff"),
    "h": attrgetter("model.num_heads"),
    "d_k": attrgetter("model.key_size"),
    "d_v": attrgetter("model.value_size"),
    "P_drop": attrgetter("model.dropout_rate"),
    "ε_ls": attrgetter("training.label_smoothing"),
    "positions": attrgetter("model.positions"),
}
