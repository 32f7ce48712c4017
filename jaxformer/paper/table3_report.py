"""Comparison of finished rows of Table 3 with the paper, as a table and a plot."""

import dataclasses
import json
import math
import pathlib
import statistics
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxformer.config import DataConfig, data_of
from jaxformer.errors import UserError
from jaxformer.files import write_file
from jaxformer.paper.command import markdown_table
from jaxformer.paper.table3_rows import ROWS, describe, row_config
from jaxformer.plots import figure
from jaxformer.runs.workdir import read_object
from jaxformer.training.optimizer import inverse_sqrt_schedule

# The paper's claims about pairs of rows, the worse row first.
_CLAIMS = (
    ("one head is worse than eight", "A1", "base"),
    ("one head is worse than four", "A1", "A2"),
    ("too many heads are worse, too", "A4", "base"),
    ("smaller d_k is worse", "B1", "base"),
    ("the smaller, the worse", "B1", "B2"),
    ("deeper is better", "C1", "C2"),
    ("deeper is better", "C2", "base"),
    ("deeper is better", "base", "C3"),
    ("wider is better", "C4", "base"),
    ("wider is better", "base", "C5"),
    ("a larger inner layer is better", "C6", "base"),
    ("a larger inner layer is better", "base", "C7"),
    ("without dropout it is worse", "D1", "base"),
    ("without label smoothing BLEU is worse", "D3", "base"),
    ("learned positions are as good", "E", "base"),
    ("the big model is best", "base", "big"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """A finished row, with its scores on the validation split.

    Attributes:
      steps: Training steps of the row "base" at this scale.
      perplexity: Perplexity per BPE token.
      bleu: Cased detokenized sacreBLEU.
      compound_split_bleu: BLEU of the same translations, computed as in the paper.
      training_seconds: Duration of the training steps alone.
      decoding_seconds: Duration of translating the validation split, compilation included.
      data: SHA-256 of the tokenizer and of both splits of the corpus.
    """

    row: str
    scale: str
    steps: int
    seed: int
    corpus: str
    perplexity: float
    bleu: float
    bleu_signature: str
    compound_split_bleu: float
    parameters: int
    training_seconds: float
    decoding_seconds: float
    machine: str
    data: dict[str, str]

    def save(self, path: pathlib.Path) -> None:
        """Writes the result as JSON, atomically."""
        write_file(path, (json.dumps(dataclasses.asdict(self), indent=2) + "\n").encode())

    @classmethod
    def load(cls, path: pathlib.Path) -> "Result":
        """Reads a result.

        Raises:
          UserError: The file is damaged, or not the result of a row.
        """
        values, names = read_object(path), {field.name for field in dataclasses.fields(cls)}
        if values.get("row") not in ROWS or not names <= values.keys():
            raise UserError(
                f"{path}: expected a finished row of Table 3; delete it to train it anew"
            )
        return cls(**{name: values[name] for name in names})


def load_results(folder: pathlib.Path) -> list[Result]:
    """Reads all finished rows below a folder, in the order of the table.

    Raises:
      UserError: A result is damaged, or results differ in scale, steps or data.
    """
    paths = sorted(folder.glob("*/result.json"))
    results = [Result.load(path) for path in paths]
    for path, result in zip(paths, results, strict=True):
        for name in ("scale", "steps", "data"):
            first, other = getattr(results[0], name), getattr(result, name)
            if first != other:
                raise UserError(
                    f"{path}: has another {name} than {paths[0]}: expected {first}, got {other}; "
                    "rows of one table must share it: put them into folders of their own"
                )
    order = list(ROWS)
    return sorted(results, key=lambda result: (order.index(result.row), result.seed))


def report(results: Sequence[Result]) -> str:
    """Formats a page with method, table, and comparison with the paper's claims."""
    first = results[0]
    base = row_config("base", first.scale, steps=first.steps)
    data = data_of(base, DataConfig)
    warmup = base.training.warmup_steps
    peak = inverse_sqrt_schedule(base.model.d_model, warmup)(warmup - 1)
    signatures = ", ".join(sorted({f"`{r.bleu_signature}`" for r in results}))
    machines, corpora = (
        "; ".join(sorted({getattr(result, name) for result in results}))
        for name in ("machine", "corpus")
    )
    return "\n".join(
        [
            f'# Table 3 at the scale "{first.scale}"\n',
            f"{describe('base', first.scale)}; vocabulary {base.model.vocab_size:,}; "
            f"{first.steps:,} steps of at most {data.tokens_per_batch:,} source and as many "
            f"target tokens, in pairs of at most {data.max_length} tokens per side; warm-up of "
            f"{warmup:,} steps, to a learning rate of {peak:.1e}; checkpoints not averaged; beam "
            f"{base.search.num_hypotheses}, length penalty {base.search.length_penalty}.\n",
            "Each row differs from base in what is named and in nothing else. PPL: perplexity per "
            f"BPE token; BLEU: cased detokenized sacreBLEU, {signatures}; split: tokenized BLEU "
            "with compounds split, as in the paper. All figures are of the validation split of "
            f"{corpora}; the paper's are of newstest2013, with word pieces: compare "
            "differences between rows, not levels. ±: sample standard deviation over seeds. "
            "Minutes: the training steps of one seed, and decoding.\n",
            f"Machine: {machines}.\n",
            _table(results),
            _claims(results),
        ]
    )


def _table(results: Sequence[Result]) -> str:
    header = [
        *("row", "change", "steps", "PPL", "paper", "BLEU", "split", "paper"),
        *("parameters", "paper (10⁶)", "seeds", "minutes"),
    ]
    lines = []
    for row, same in _by_row(results).items():
        paper, config = ROWS[row], row_config(row, same[0].scale, steps=same[0].steps)
        training, decoding = (
            statistics.mean(getattr(result, f"{work}_seconds") for result in same) / 60
            for work in ("training", "decoding")
        )
        lines.append(
            [
                row,
                describe(row, same[0].scale),
                f"{config.training.steps:,}",
                _mean_and_spread(r.perplexity for r in same),
                f"{paper.perplexity:.2f}",
                _mean_and_spread(r.bleu for r in same),
                _mean_and_spread(r.compound_split_bleu for r in same),
                f"{paper.bleu:.1f}",
                f"{same[0].parameters:,}",
                f"{paper.parameters or ''}",
                str(len(same)),
                f"{training:.1f} + {decoding:.1f}",
            ]
        )
    return markdown_table(header, lines)


def _claims(results: Sequence[Result]) -> str:
    """Tabulates differences between rows, worse minus better, beside the paper's."""
    rows = _by_row(results)
    lines = []
    for claim, worse, better in _CLAIMS:
        if worse not in rows or better not in rows:
            continue
        cells = []
        for measure in (attrgetter("perplexity"), attrgetter("bleu")):
            ours = _mean(measure, rows[worse]) - _mean(measure, rows[better])
            paper = measure(ROWS[worse]) - measure(ROWS[better])
            cells += [f"{ours:+.2f}", f"{paper:+.2f}"]
        lines.append([claim, f"{worse} - {better}", *cells])
    if not lines:
        return ""
    header = ["the paper's claim", "rows", "PPL", "paper", "BLEU", "paper"]
    return "Differences between rows:\n\n" + markdown_table(header, lines)


def draw(results: Sequence[Result], path: pathlib.Path) -> None:
    """Plots the difference between each row and base, ours and the paper's, as a PNG or SVG."""
    rows = _by_row(results)
    others = [row for row in rows if row != "base"]
    with figure.style():
        page = Figure(figsize=(6.4, 1.3 + 0.18 * len(others)), layout="constrained")
        left, right = page.subplots(1, 2, sharey=True)
        _draw_differences(left, rows, others, _log_perplexity)
        _draw_differences(right, rows, others, attrgetter("bleu"))
        left.set_title("100 ln(perplexity)")
        right.set_title("BLEU")
        page.suptitle("Difference to the row base", x=0.01, ha="left")
        labels = [f"{row}: {describe(row, results[0].scale)}" for row in others]
        left.set_yticks(range(len(others)), labels)
        left.set_ylim(len(others) - 0.5, -0.5)
        page.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=2)
        figure.save(page, path)


def _draw_differences(
    axes: Axes,
    rows: dict[str, list[Result]],
    others: Sequence[str],
    measure: Callable,
) -> None:
    axes.grid(visible=True, axis="x")
    axes.axvline(0, color=figure.GRAY, linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    base = _mean(measure, rows["base"])
    ours = [_mean(measure, rows[row]) - base for row in others]
    spread = [_spread(measure(r) for r in rows[row]) for row in others]
    paper = [measure(ROWS[row]) - measure(ROWS["base"]) for row in others]
    places = range(len(others))
    axes.errorbar(ours, places, xerr=spread, fmt="o", color=figure.BLUE, markersize=4, label="ours")
    axes.plot(paper, places, "D", color=figure.ORANGE, markersize=3.5, label="the paper's")


def _log_perplexity(row) -> float:
    return 100 * math.log(row.perplexity)


def _by_row(results: Sequence[Result]) -> dict[str, list[Result]]:
    names = dict.fromkeys(result.row for result in results)
    return {name: [result for result in results if result.row == name] for name in names}


def _mean(measure: Callable[[Result], float], results: Iterable[Result]) -> float:
    return statistics.mean(map(measure, results))


def _spread(values: Iterable[float]) -> float:
    """Returns the sample standard deviation; 0 for a single value."""
    values = list(values)
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _mean_and_spread(values: Iterable[float]) -> str:
    values = list(values)
    mean = f"{statistics.mean(values):.2f}"
    return f"{mean} ± {_spread(values):.2f}" if len(values) > 1 else mean
