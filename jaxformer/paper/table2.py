"""Training cost (Table 2): operations counted from the sizes, beside the paper's estimate.

The paper multiplies the time that training took by the number of GPUs and by what one of them is
estimated to sustain. Here all matrix products of a training run are counted. The quotient is the
share of that sustained speed that went into matrix products. Writes Markdown to standard output.
"""

import sys
from collections.abc import Sequence
from typing import NamedTuple

from jaxformer.analysis.flops import training_flops
from jaxformer.errors import exit_code
from jaxformer.paper import command
from jaxformer.paper.table3_rows import row_config

_EXAMPLE = "python -m jaxformer.paper.table2 --tokens 25 > table2.md"
GPUS = 8
SUSTAINED = 9.5e12  # floating point operations a second of one P100, as the paper estimates
_TOKENS_PER_BATCH = 25_000  # source, and as many target tokens


class PublishedRun(NamedTuple):
    """A training run of the paper.

    Attributes:
      row: Its row in Table 3.
      hours: How long it took.
      flops: What Table 2 prints.
    """

    row: str
    hours: float
    flops: float


RUNS = (PublishedRun("base", 12, 3.3e18), PublishedRun("big", 3.5 * 24, 2.3e19))


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = command.parser("table2", __doc__, _EXAMPLE)
    parser.add_argument(
        "--tokens",
        type=int,
        choices=[n for n in range(1, 501) if _TOKENS_PER_BATCH % n == 0],
        default=25,
        help="of every sentence, on either side: it matters little (default: %(default)s)",
    )
    print(report(parser.parse_args(arguments).tokens), end="")


def report(length: int) -> str:
    """The table, for sentences of ``length`` tokens."""
    lines = []
    for run in RUNS:
        counted = run_flops(run.row, length)
        estimated = estimate(run.hours)
        lines.append(
            [
                run.row,
                f"{row_config(run.row).training.steps:,}",
                f"{counted:.2e}",
                f"{run.flops:.1e}",
                f"{estimated:.2e}",
                f"{counted / estimated:.0%}",
            ]
        )
    header = ["model", "steps", "counted", "paper", "its estimate again", "counted / estimate"]
    return "\n".join(
        [
            "# Training cost of Table 2: floating point operations\n",
            command.markdown_table(header, lines),
            f"Counted: all matrix products, forward and backward, of {_TOKENS_PER_BATCH:,} source "
            f"and as many target tokens a step, in sentences of {length}, without padding. "
            f"Estimate: {GPUS} GPUs, {SUSTAINED / 1e12:g} TFLOPS sustained, "
            + " and ".join(f"{run.hours:g} h ({run.row})" for run in RUNS)
            + ".\n",
        ]
    )


def run_flops(row: str, length: int) -> int:
    """Operations of a whole training run, in sentences of ``length`` tokens on either side."""
    config = row_config(row)
    a_step = training_flops(config.model, _TOKENS_PER_BATCH // length, length, length)
    return config.training.steps * a_step


def estimate(hours: float) -> float:
    """The paper's own way: GPUs times seconds times sustained operations a second."""
    return GPUS * hours * 3600 * SUSTAINED


if __name__ == "__main__":
    sys.exit(exit_code(main))
