"""The ``jaxformer`` command: arguments in, one call, messages out."""

import functools
import importlib
import os
import sys
from collections.abc import Sequence
from typing import TextIO

from jaxformer.cli.arguments import parse
from jaxformer.errors import exit_code


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Returns:
      Its exit code, that of :func:`jaxformer.errors.exit_code`.
    """
    return exit_code(functools.partial(_run, arguments))


def _run(arguments: Sequence[str] | None) -> None:
    options = parse(arguments)
    # Imported here: what one command needs, the others, and --help, do not wait for.
    module, function = options.run.split(".")
    try:
        getattr(importlib.import_module(f"jaxformer.cli.{module}"), function)(options)
        _flush(sys.stdout)
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _flush(stream: TextIO | None) -> None:
    if stream is not None:  # closed before the program began
        stream.flush()
