"""The 20 rows of Table 3: changes of each to the base model, and the paper's results."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxformer.config import Config, DataConfig, ModelConfig, TrainingConfig
from jaxformer.errors import UserError
from jaxformer.files import data_directory


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A row of Table 3, with the results in the paper.

    Attributes:
      model: Changed fields of ``ModelConfig``, in the paper's sizes; unset head sizes follow.
      training: Changed fields of ``TrainingConfig``.
      longer: Factor on the number of training steps.
      perplexity: Perplexity per word piece on newstest2013.
      bleu: BLEU on newstest2013.
      parameters: Number of parameters in millions; None if the paper prints none, as for rows with
        the size of base.
    """

    model: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    training: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    longer: int = 1
    perplexity: float
    bleu: float
    parameters: int | None = None


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
    "big": Row(
        model={"d_model": 1024, "d_ff": 4096, "num_heads": 16, "dropout_rate": 0.3},
        longer=3,
        perplexity=4.33,
        bleu=26.4,
        parameters=213,
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """Size of the rows relative to the paper.

    Attributes:
      base: Config of the row "base".
      width: Divisor of the paper's d_model, d_ff, d_k and d_v; the number of heads is unchanged.
      depth: Divisor of the number of layers.
    """

    base: Config
    width: int = 1
    depth: int = 1

    def __post_init__(self) -> None:
        paper, ours = ModelConfig(), self.base.model
        assert (ours.d_model, ours.d_ff) == (paper.d_model // self.width, paper.d_ff // self.width)
        assert ours.num_layers == paper.num_layers // self.depth

    def change(self, name: str, value: Any) -> Any:
        """Scales the paper's value of a field of ``ModelConfig``."""
        if name in ("d_model", "d_ff", "d_k", "d_v"):
            return value // self.width
        return value // self.depth if name == "num_layers" else value


# Folder of external data, as for the files in configs/.
_DATA = data_directory()

_PAPER = Config(
    model=ModelConfig(compute_dtype="bfloat16"),
    data=DataConfig(
        corpus="parquet",
        train=f"{_DATA}/wmt14-de-en/train-*.parquet",
        valid=f"{_DATA}/wmt14-de-en/validation-*.parquet",
    ),
    training=TrainingConfig(eval_every=15_000, eval_sentences=0, keep_checkpoints=1),
)

_SMALL = Config(
    model=ModelConfig(
        vocab_size=6000,
        d_model=128,
        d_ff=512,
        num_layers=3,
        max_length=256,
        compute_dtype="bfloat16",
    ),
    data=DataConfig(
        corpus="text",
        train=f"{_DATA}/tatoeba-en-de/train",
        valid=f"{_DATA}/tatoeba-en-de/valid",
        batching="packing",
        tokens_per_batch=2048,
        max_length=64,
    ),
    training=TrainingConfig(
        steps=2000,
        warmup_steps=400,
        checkpoint_every=500,
        eval_every=10_000,
        eval_sentences=0,
        keep_checkpoints=1,
    ),
)

_SMOKE = Config(
    model=ModelConfig(vocab_size=300, d_model=32, d_ff=128, num_layers=3, max_length=128),
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
        eval_sentences=0,
        keep_checkpoints=1,
    ),
)

# The paper's scale, one for a few hours on a CPU, and one for smoke tests.
SCALES = {
    "paper": Scale(base=_PAPER),
    "small": Scale(base=_SMALL, width=4, depth=2),
    "smoke": Scale(base=_SMOKE, width=16, depth=2),
}


def row_config(
    row: str, scale: str = "paper", *, steps: int | None = None, seed: int = 0
) -> Config:
    """Returns the config of a row: the config of "base" with exactly the paper's changes.

    ``steps`` are the training steps of the row "base", by default the scale's.

    Raises:
      UserError: There is no such row or scale.
    """
    if row not in ROWS:
        raise UserError(f"unknown row {row!r} of Table 3; known rows: {', '.join(ROWS)}")
    if scale not in SCALES:
        raise UserError(f"unknown scale {scale!r}; known scales: {', '.join(SCALES)}")
    change, size = ROWS[row], SCALES[scale]
    base = size.base
    model = {name: size.change(name, value) for name, value in change.model.items()}
    steps = change.longer * (base.training.steps if steps is None else steps)
    training = dataclasses.replace(base.training, **change.training, steps=steps, seed=seed)
    return dataclasses.replace(
        base, model=dataclasses.replace(base.model, **model), training=training
    )


def describe(row: str, scale: str) -> str:
    """Describes the changes of a row, in the paper's symbols and the scale's sizes.

    >>> describe("A1", "paper")
    'h 1, d_k 512, d_v 512'
    """
    base, config = (_symbols(row_config(name, scale)) for name in ("base", row))
    changes = {name: value for name, value in config.items() if value != base[name]}
    return ", ".join(f"{name} {value}" for name, value in (changes or base).items())


def _symbols(config: Config) -> dict[str, Any]:
    model = config.model
    return {
        "N": model.num_layers,
        "d_model": model.d_model,
        "d_ff": model.d_ff,
        "h": model.num_heads,
        "d_k": model.key_size,
        "d_v": model.value_size,
        "P_drop": model.dropout_rate,
        "ε_ls": config.training.label_smoothing,
        "positions": model.positions,
    }
