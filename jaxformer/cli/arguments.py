"""Command-line arguments of all commands, and one-line errors about unknown names.

This module and the modules of the commands import no heavy libraries before a command runs, so that
``--help`` and errors about arguments appear at once.
"""

import functools
import inspect
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

from jaxformer.cli import commands
from jaxformer.cli.command import Command
from jaxformer.cli.signatures import CommandParser, command_parser, keyword_arguments, summary
from jaxformer.errors import UserError, did_you_mean, typed_command
from jaxformer.registry import find_entries
from jaxformer.version import __version__


def known_commands() -> dict[str, Command]:
    """Returns all commands by name, in the order of ``--help``."""
    return find_entries(commands, Command)


def parse_arguments(arguments: Sequence[str] | None = None) -> functools.partial[None]:
    """Returns the function of a command with its arguments, by default the process's."""
    if arguments is None:
        arguments = sys.argv[1:]
    words = _join_overrides(arguments)
    known = known_commands()
    if not words or words[0] not in known:
        _end_without_command(words, known)

    name, *words_of_command = words
    command = known[name]
    function = command.run
    parser = command_parser(typed_command(command.name), function, command.lists)
    options, unknown = parser.parse_known_args(words_of_command)
    values = vars(options)

    has_overrides = "overrides" in inspect.signature(function).parameters
    if has_overrides:
        overrides = [word for word in unknown if word.startswith("--config.")]
        unknown = [word for word in unknown if word not in overrides]
        values["overrides"] = overrides

    if command.name == "train" and values["config"] is None:
        # Not left to argparse: Python 3.11 finds no optional positional after --workdir.
        configs = [word for word in unknown if not word.startswith("-")]
        if configs:
            config = configs[0]
            values["config"] = config
            unknown = [word for word in unknown if word != config]

    if unknown:
        raise UserError(_unknown(unknown[0], parser, has_overrides))

    arguments_of_function = keyword_arguments(function, values)
    return functools.partial(function, **arguments_of_function)


def _end_without_command(words: Sequence[str], known: Mapping[str, Command]) -> NoReturn:
    """Prints the help or the version, or reports that the first argument is not a command."""
    parser = _make_parser(known.values())
    if not words:  # A script whose arguments are missing must not succeed.
        parser.print_help(sys.stderr)
        raise SystemExit(2)

    first = words[0]
    if not first.startswith("-"):
        hint = did_you_mean(first, known, "see jaxformer --help")
        raise UserError(f"unknown command {first}; {hint}")
    parser.parse_args([first])  # --help or --version, or an error
    parser.error(f"expected a command first: got {first}")


def _unknown(word: str, parser: CommandParser, has_overrides: bool) -> str:
    """Returns an error about a word, with the option or config field that may be meant."""
    flags = re.findall(r"--[a-z][a-z_-]*", parser.format_help())
    known = {_plain_name(flag): flag for flag in flags}
    if has_overrides:
        from jaxformer.cli.config_file import field_names  # It imports JAX.

        known = field_names("--config.") | known

    flag, _, _ = word.partition("=")
    _, _, field = flag.rpartition(".")  # of --config.SECTION.FIELD
    name = _plain_name(field).lower()
    hint = did_you_mean(
        name,
        known,
        otherwise=f"see {parser.prog} --help",
        meaning=known.__getitem__,
    )
    return f"unknown argument {word}; {hint}"


def _plain_name(flag: str) -> str:
    name = flag.strip("-")
    return name.replace("-", "_")


def _join_overrides(words: Sequence[str]) -> list[str]:
    """Joins ``--config.FIELD VALUE`` to ``--config.FIELD=VALUE``."""
    joined: list[str] = []
    for word in words:
        before = joined[-1] if joined else ""
        lacks_value = before.startswith("--config.") and "=" not in before
        if lacks_value and not word.startswith("--"):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _make_parser(known: Iterable[Command]) -> CommandParser:
    """Returns the parser of the first argument, with a list of all commands."""
    parser = CommandParser(
        prog="jaxformer",
        description="Trains models, and translates, generates, parses, scores and plots with them.",
        epilog="Every command has its own --help, with an example. Exit codes: 0 done, 1 failed, 2 "
        "mistake in the input, 3 some lines failed, 130 interrupted. Of "
        "train also 75: stopped, the same command resumes.",
    )
    parser.add_argument("--version", action="version", version=f"jaxformer {__version__}")
    first = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in known:
        first.add_parser(command.name, help=summary(command.run))
    return parser
