"""Argument parser of the command line.

The module imports no heavy libraries, so that ``--help`` and error messages appear at once.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

from jaxformer.cli.commands import add_commands
from jaxformer.errors import UserError, did_you_mean
from jaxformer.version import __version__


class CommandParser(argparse.ArgumentParser):
    """A parser that reports errors in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parses the arguments of a command.

    Returns:
      The options; ``run`` is the command's module in ``jaxformer.cli`` and function, such as
      "plot.attention".

    Raises:
      UserError: There is no such command or option, or a value is missing or of the wrong type.
    """
    words = _join_overrides(sys.argv[1:] if arguments is None else arguments)
    options, unknown = _parser().parse_known_args(words)
    if "overrides" in options:
        options.overrides = [word for word in unknown if word.startswith("--config.")]
        unknown = [word for word in unknown if word not in options.overrides]
    if options.run == "train.train" and options.config is None:
        # Not an argument of argparse: Python 3.11 finds no optional one after --workdir.
        options.config = next((word for word in unknown if not word.startswith("-")), None)
        unknown = [word for word in unknown if word != options.config]
    if unknown:
        flags = re.findall(r"--[a-z][a-z_-]*", options.parser.format_help())
        known = {flag.strip("-").replace("-", "_"): flag for flag in flags}
        if "overrides" in options:
            from jaxformer.cli.config_file import field_names  # It imports JAX.

            known = field_names("--config.") | known
        name = unknown[0].partition("=")[0].rpartition(".")[2].strip("-").replace("-", "_")
        otherwise = f"see {options.parser.prog} --help"
        hint = did_you_mean(name.lower(), known, otherwise, known.__getitem__)
        raise UserError(f"unknown argument {unknown[0]}; {hint}")
    return options


def _join_overrides(words: Sequence[str]) -> list[str]:
    """Joins ``--config.FIELD VALUE`` to ``--config.FIELD=VALUE``."""
    joined: list[str] = []
    for word in words:
        before = joined[-1] if joined else ""
        if before.startswith("--config.") and "=" not in before and not word.startswith("--"):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="jaxformer",
        description="Trains models, and translates, generates, parses, scores and plots with them.",
        epilog="Every command has its own --help, with an example. Exit codes: 0 done, 1 failed, 2 "
        "mistake in the input, 3 some lines could not be done, 130 interrupted. Of "
        "train also 75: stopped, the same command resumes.",
    )
    parser.add_argument("--version", action="version", version=f"jaxformer {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    add_commands(commands)
    return parser
