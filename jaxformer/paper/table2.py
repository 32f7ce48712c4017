"""Training cost (Table 2): operations counted from the sizes, beside the paper's estimate.

The paper multiplies the training time by the number of GPUs and their estimated sustained speed.
Here all matrix multiplications of a training run are counted. The ratio of the two is the fraction
of the sustained speed that was used for matrix multiplications. Writes Markdown to standard output.
"""

import sys
from collections.abc import Sequence
from typing import NamedTuple

from jaxformer.errors import exit_code
from jaxformer.paper import table_commands
from jaxformer.paper.table3_rows import row_config
from jaxformer.training.flops import training_flops

GPUS = 8
SUSTAINED = 9.5e12  # floating-point operations per second of a P100, as the paper estimates
_TOKENS_PER_BATCH = 25_000  # source tokens, and as many target tokens
_LENGTH = 25  # tokens per sentence on either side; the result hardly depends on it


class PublishedRun(NamedTuple):
    """A training run of the paper: its row in Table 3, its time and its operations in Table 2."""

    row: str
    hours: float
    flops: float


RUNS = (
    PublishedRun("base", hours=12, flops=3.3e18),
    PublishedRun("big", hours=3.5 * 24, flops=2.3e19),
)


def main(arguments: Sequence[str] | None = None) -> None:
    example = "python -m jaxformer.paper.table2 > table2.md"
    table_commands.parser("table2", __doc__, example).parse_args(arguments)
    print(report(), end="")


def report() -> str:
    lines = []
    for run in RUNS:
        # Operations: counted, as printed in the paper, and its estimate recomputed.
        steps = row_config(run.row).training.steps
        counted = run_flops(run.row)
        estimated = estimate(run.hours)

        lines.append(
            [
                run.row,
                f"{steps:,}",
                f"{counted:.2e}",
                f"{run.flops:.1e}",
                f"{estimated:.2e}",
                f"{counted / estimated:.0%}",
            ]
        )
    header = ["model", "steps", "counted", "paper", "recomputed", "counted / estimate"]

    hours = " and ".join(f"{run.hours:g} h ({run.row})" for run in RUNS)
    return (
        "# Training cost of Table 2: floating point operations\n\n"
        f"{table_commands.markdown_table(header, lines)}\n"
        f"Counted: all matrix multiplications, forward and backward, of {_TOKENS_PER_BATCH:,} "
        f"source and {_TOKENS_PER_BATCH:,} target tokens per step, in sentences of {_LENGTH}, "
        f"without padding. Estimate: {GPUS} GPUs, {SUSTAINED / 1e12:g} TFLOPS sustained, {hours}.\n"
    )


def run_flops(row: str) -> int:
    config = row_config(row)
    sentences = _TOKENS_PER_BATCH // _LENGTH
    per_step = training_flops(config.model, sentences, _LENGTH, _LENGTH)
    return config.training.steps * per_step


def estimate(hours: float) -> float:
    """Computes the paper's estimate: GPUs times seconds times sustained operations per second."""
    return GPUS * hours * 3600 * SUSTAINED


if __name__ == "__main__":
    sys.exit(exit_code(main))
