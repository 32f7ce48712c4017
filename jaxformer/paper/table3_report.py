"""Comparison of finished rows of Table 3 with the paper, as a table and a plot."""

import dataclasses
import json
import math
import pathlib
import statistics
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple

from jaxformer.config import DataConfig, data_section
from jaxformer.errors import UserError
from jaxformer.files import write_file
from jaxformer.paper.table3_rows import ROWS, Row, describe, row_config
from jaxformer.paper.table_commands import markdown_table
from jaxformer.plots import figure
from jaxformer.runs.workdir import read_workdir_object
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
    """A finished row, with its scores on the validation split."""

    row: str
    scale: str
    steps: int  # of the row "base" at this scale
    seed: int
    corpus: str
    perplexity: float
    bleu: float
    bleu_signature: str
    compound_split_bleu: float
    parameters: int
    training_seconds: float  # of the training steps alone
    decoding_seconds: float  # of the validation split, compilation included
    machine: str
    data: dict[str, str]  # SHA-256 of the tokenizer and of both splits of the corpus

    def save(self, path: pathlib.Path) -> None:
        text = json.dumps(dataclasses.asdict(self), indent=2) + "\n"
        write_file(path, text.encode())


def load_results(folder: pathlib.Path) -> list[Result]:
    """Reads all finished rows below a folder, in the order of the table."""
    names = {field.name for field in dataclasses.fields(Result)}
    paths = sorted(folder.glob("*/result.json"))

    results = []
    for path in paths:
        values = read_workdir_object(path)
        if values.get("row") not in ROWS or not names <= values.keys():
            raise UserError(
                f"{path}: expected a finished row of Table 3; delete it to train it anew"
            )

        result = Result(**{name: values[name] for name in names})
        results.append(result)

        for name in ("scale", "steps", "data"):
            first = getattr(results[0], name)
            other = getattr(result, name)
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
    data = data_section(base, DataConfig)

    warmup = base.training.warmup_steps
    schedule = inverse_sqrt_schedule(base.model.d_model, warmup)
    peak = schedule(warmup - 1)

    # Rows may come from several machines.
    signatures = ", ".join(sorted({f"`{result.bleu_signature}`" for result in results}))
    machines = "; ".join(sorted({result.machine for result in results}))
    corpora = "; ".join(sorted({result.corpus for result in results}))

    return (
        f'# Table 3 at the scale "{first.scale}"\n\n'
        f"{describe('base', first.scale)}; vocabulary {base.model.vocab_size:,}; "
        f"{first.steps:,} steps of at most {data.tokens_per_batch:,} source and as many target "
        f"tokens, in pairs of at most {data.max_length} tokens per side; warm-up of {warmup:,} "
        f"steps, to a learning rate of {peak:.1e}; checkpoints not averaged; beam "
        f"{base.search.num_hypotheses}, length penalty {base.search.length_penalty}.\n\n"
        "Each row differs from base only by the named change. PPL: perplexity per BPE "
        f"token; BLEU: cased detokenized sacreBLEU, {signatures}; split: tokenized BLEU with "
        f"compounds split, as in the paper. All figures are of the validation split of {corpora}; "
        "the paper's are of newstest2013, with word pieces: compare differences between rows, not "
        "levels. ±: sample standard deviation over seeds. Minutes: the training steps of one "
        f"seed, and decoding.\n\nMachine: {machines}.\n\n{_table(results)}\n{_claims(results)}"
    )


def _table(results: Sequence[Result]) -> str:
    header = [
        "row",
        "change",
        "steps",
        "PPL",
        "paper",
        "BLEU",
        "split",
        "paper",
        "parameters",
        "paper (10⁶)",
        "seeds",
        "minutes",
    ]

    lines = []
    for row, seeds in _by_row(results).items():
        paper = ROWS[row]
        first = seeds[0]

        steps = paper.longer * first.steps
        training_minutes = _mean(seeds, attrgetter("training_seconds")) / 60
        decoding_minutes = _mean(seeds, attrgetter("decoding_seconds")) / 60

        lines.append(
            [
                row,
                describe(row, first.scale),
                f"{steps:,}",
                _cell(seeds, attrgetter("perplexity")),
                f"{paper.perplexity:.2f}",
                _cell(seeds, attrgetter("bleu")),
                _cell(seeds, attrgetter("compound_split_bleu")),
                f"{paper.bleu:.1f}",
                f"{first.parameters:,}",
                f"{paper.parameters or ''}",
                str(len(seeds)),
                f"{training_minutes:.1f} + {decoding_minutes:.1f}",
            ]
        )
    return markdown_table(header, lines)


def _cell(seeds: Sequence[Result], measure: Callable[[Result], float]) -> str:
    """Formats the mean over seeds, with its spread if there are several."""
    mean = _mean(seeds, measure)
    if len(seeds) == 1:
        return f"{mean:.2f}"
    return f"{mean:.2f} ± {_spread(seeds, measure):.2f}"


def _claims(results: Sequence[Result]) -> str:
    """Tabulates differences between rows, worse minus better, beside the paper's."""
    rows = _by_row(results)
    lines = []
    for claim, worse, better in _CLAIMS:
        if worse not in rows or better not in rows:
            continue

        perplexity = _difference(rows, worse, better, attrgetter("perplexity"))
        bleu = _difference(rows, worse, better, attrgetter("bleu"))

        lines.append(
            [
                claim,
                f"{worse} - {better}",
                f"{perplexity.ours:+.2f}",
                f"{perplexity.paper:+.2f}",
                f"{bleu.ours:+.2f}",
                f"{bleu.paper:+.2f}",
            ]
        )
    if not lines:
        return ""

    header = ["the paper's claim", "rows", "PPL", "paper", "BLEU", "paper"]
    return "Differences between rows:\n\n" + markdown_table(header, lines)


def draw(results: Sequence[Result], path: pathlib.Path) -> None:
    """Plots the difference between each row and base, ours and the paper's, as a PNG or SVG."""
    rows = _by_row(results)
    others = [row for row in rows if row != "base"]
    places = range(len(others))
    panels: dict[str, Callable[[Result | Row], float]] = {
        "100 ln(perplexity)": lambda row: 100 * math.log(row.perplexity),
        "BLEU": attrgetter("bleu"),
    }

    height = 1.3 + 0.18 * len(others)
    with figure.open_figure(path, width=6.4, height=height) as page:
        left, right = page.subplots(1, 2, sharey=True)
        for axes, (title, measure) in zip((left, right), panels.items(), strict=True):
            axes.set_title(title)
            axes.grid(visible=True, axis="x")
            axes.axvline(0, color=figure.GRAY, linewidth=0.8)
            axes.spines[["top", "right"]].set_visible(False)

            # Ours with the spread over seeds, and the paper's beside it.
            differences = [_difference(rows, row, "base", measure) for row in others]
            axes.errorbar(
                [difference.ours for difference in differences],
                places,
                xerr=[_spread(rows[row], measure) for row in others],
                label="ours",
                fmt="o",
                color=figure.BLUE,
                markersize=4,
            )
            axes.plot(
                [difference.paper for difference in differences],
                places,
                "D",
                color=figure.ORANGE,
                markersize=3.5,
                label="the paper's",
            )

        # The rows are named once, from top to bottom.
        scale = results[0].scale
        left.set_yticks(places, [f"{row}: {describe(row, scale)}" for row in others])
        left.set_ylim(len(others) - 0.5, -0.5)

        page.suptitle("Difference to the row base", x=0.01, ha="left")
        handles, labels = right.get_legend_handles_labels()
        page.legend(handles, labels, loc="outside lower center", ncols=2)


def _by_row(results: Sequence[Result]) -> dict[str, list[Result]]:
    rows = {}
    for result in results:
        rows.setdefault(result.row, []).append(result)
    return rows


class _Difference(NamedTuple):
    """A difference between two rows."""

    ours: float
    paper: float


def _difference(
    rows: dict[str, list[Result]],
    one: str,
    other: str,
    measure: Callable[[Result | Row], float],
) -> _Difference:
    """Returns the difference between two rows, ours and the paper's."""
    ours = _mean(rows[one], measure) - _mean(rows[other], measure)
    paper = measure(ROWS[one]) - measure(ROWS[other])
    return _Difference(ours, paper)


def _mean(seeds: Sequence[Result], measure: Callable[[Result], float]) -> float:
    return statistics.mean(measure(result) for result in seeds)


def _spread(seeds: Sequence[Result], measure: Callable[[Result], float]) -> float:
    """Returns the sample standard deviation, which is 0 for a single seed."""
    if len(seeds) == 1:
        return 0.0
    return statistics.stdev(measure(result) for result in seeds)
