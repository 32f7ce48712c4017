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
    return argparse.ArgumentParser(
        prog=program,
        description=description,
        epilog=f"Example:\n  {example or f'{program} --output runs/{name}'}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def options(
    name: str, document: str | None, sizes: str, values: list[int], arguments: Sequence[str] | None
) -> argparse.Namespace:
    """Parses ``--output`` and the sizes to measure, such as ``--lengths``, with defaults."""
    command = parser(name, document)
    help_ = f"two or more of 1 or more (default: powers of 2 from {values[0]} to {values[-1]})"
    add = command.add_argument
    add("--output", type=local_path, required=True, metavar="DIR", help="folder to write to")
    add(f"--{sizes}", type=parse_numbers, default=values, metavar="N,N,...", help=help_)
    chosen = command.parse_args(arguments)
    if len(given := getattr(chosen, sizes)) < 2 or given[0] < 1:
        raise UserError(f"--{sizes}: expected two or more of 1 or more: got {given}")
    return chosen


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Formats a table in Markdown, with a line break at the end."""
    head, *body = (f"| {' | '.join(cells)} |\n" for cells in (header, *rows))
    return "".join([head, "|", "---|" * len(header), "\n", *body])


def machine() -> str:
    """Returns a description of the device that JAX uses, and JAX's version."""
    device = jax.devices()[0]
    name = f"{jax.device_count()} x {device.device_kind}"
    if device.platform == "cpu":
        # taskset may limit the cores of this process.
        known = hasattr(os, "sched_getaffinity")  # On Linux.
        cores = len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1
        name = f"{cores} core{'s' if cores > 1 else ''} of {processor()}"
    return f"{name}, jax {jax.__version__}"


def processor() -> str:
    try:
        names = pathlib.Path("/proc/cpuinfo").read_text().split("model name\t: ")[1:]
    except OSError:
        names = []
    return names[0].split("\n")[0] if names else platform.processor()
