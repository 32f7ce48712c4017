"""Options, Markdown tables and machine names for the commands of this package."""

import argparse
import os
import pathlib
import platform
from collections.abc import Iterable, Sequence

import jax

from jaxformer.checks import parse_numbers
from jaxformer.errors import UserError
from jaxformer.files import local_path


def parser(name: str, description: str | None, example: str = "") -> argparse.ArgumentParser:
    """Returns a parser for ``python -m jaxformer.paper.NAME`` with an example in its help."""
    program = f"python -m jaxformer.paper.{name}"
    example = example or f"{program} --output runs/{name}"
    return argparse.ArgumentParser(
        prog=program,
        description=description,
        epilog=f"Example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def options(
    name: str,
    document: str | None,
    sizes: str,
    values: list[int],
    arguments: Sequence[str] | None,
) -> argparse.Namespace:
    """Parses ``--output`` and the sizes to measure, such as ``--lengths``, with defaults."""
    command = parser(name, document)

    command.add_argument(
        "--output",
        type=local_path,
        required=True,
        metavar="DIR",
        help="folder to write to",
    )

    command.add_argument(
        f"--{sizes}",
        type=parse_numbers,
        default=values,
        metavar="N,N,...",
        help=f"two or more of 1 or more (default: powers of 2 from {values[0]} to {values[-1]})",
    )

    # Growth with the size needs at least two sizes.
    chosen = command.parse_args(arguments)
    given = getattr(chosen, sizes)
    if len(given) < 2 or given[0] < 1:
        raise UserError(f"--{sizes}: expected two or more of 1 or more: got {given}")
    return chosen


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Formats a table in Markdown, with a line break at the end."""
    # The rule makes the first row a header.
    rule = "|" + "---|" * len(header) + "\n"
    return _table_row(header) + rule + "".join(map(_table_row, rows))


def _table_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def machine() -> str:
    """Returns a description of the device that JAX uses, and JAX's version."""
    device = jax.devices()[0]
    name = f"{jax.device_count()} x {device.device_kind}"

    if device.platform == "cpu":
        # On Linux, taskset may limit the cores of this process.
        if hasattr(os, "sched_getaffinity"):
            cores = len(os.sched_getaffinity(0))
        else:
            cores = os.cpu_count() or 1
        plural = "s" if cores > 1 else ""
        name = f"{cores} core{plural} of {processor()}"
    return f"{name}, jax {jax.__version__}"


def processor() -> str:
    try:
        facts = pathlib.Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()

    # One line per core; the first is enough.
    names = facts.split("model name\t: ")[1:]
    if not names:
        return platform.processor()
    return names[0].split("\n")[0]
