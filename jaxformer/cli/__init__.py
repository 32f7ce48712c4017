"""The ``jaxformer`` command."""

import functools
import importlib
import os
import sys
from collections.abc import Sequence
from typing import TextIO

from jaxformer.cli.arguments import parse as parse_arguments
from jaxformer.errors import exit_code


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its :func:`~jaxformer.errors.exit_code`."""
    return exit_code(functools.partial(_run, arguments))


def _run(arguments: Sequence[str] | None) -> None:
    options = parse_arguments(arguments)
    # A command's imports should not slow down --help and the other commands.
    module, function = options.run.split(".")
    try:
        getattr(importlib.import_module(f"jaxformer.cli.{module}"), function)(options)
        _flush(sys.stdout)
    except BrokenPipeError:  # The reader, such as `head`, has exited.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _flush(stream: TextIO | None) -> None:
    if stream is not None:  # None if it was closed before Python started.
        stream.flush()
