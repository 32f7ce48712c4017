"""What the commands of this room share: options, Markdown, the machine's name."""

import argparse
import os
import pathlib
import platform
import re
from collections.abc import Sequence

import jax


def parser(name: str, description: str | None, example: str) -> argparse.ArgumentParser:
    """A parser for ``python -m jaxformer.paper.NAME``, whose help ends with an example."""
    return argparse.ArgumentParser(
        prog=f"python -m jaxformer.paper.{name}",
        description=description,
        epilog=f"Example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def numbers(text: str) -> list[int]:
    """Whole numbers separated by commas, in order, each once: a type of options.

    Raises:
      ArgumentTypeError: The text is not that.

    >>> numbers("8,1,2")
    [1, 2, 8]
    """
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise argparse.ArgumentTypeError(f"expected numbers such as 1 or 1,3: got {text!r}")
    return sorted({int(number) for number in text.split(",")})


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, with a line break at its end.

    >>> print(markdown_table(["row", "BLEU"], [["base", "25.8"]]), end="")
    | row | BLEU |
    |---|---|
    | base | 25.8 |
    """
    lines = [list(header), ["---"] * len(header), *map(list, rows)]
    texts = ["| " + " | ".join(cells) + " |" for cells in lines]
    texts[1] = texts[1].replace(" ", "")
    return "".join(f"{text}\n" for text in texts)


def machine() -> str:
    """The device that jax computes on, to print with what was measured on it."""
    device = jax.devices()[0]
    if device.platform == "cpu":
        cores = _usable_cores()
        name = f"{cores} core{'s' if cores > 1 else ''} of {processor()}"
    else:
        name = f"{jax.device_count()} x {device.device_kind}"
    return f"{name}, jax {jax.__version__}"


def _usable_cores() -> int:
    """How many this process may use: fewer than there are under taskset and some batch systems."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor() -> str:
    """The name of the CPU."""
    try:
        names = pathlib.Path("/proc/cpuinfo").read_text().split("model name\t: ")[1:]
    except OSError:
        names = []
    return names[0].split("\n")[0] if names else platform.processor()
