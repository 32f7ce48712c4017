"""Command-line arguments: the commands, and one-line errors about unknown names.

This module and the modules of the commands import no heavy libraries before a command runs, so that
``--help`` and errors about arguments appear at once.
"""

import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from jaxformer.cli.catalog import list_corpora
from jaxformer.cli.configs import list_configs
from jaxformer.cli.signatures import CommandParser, command_parser, keyword_arguments, summary
from jaxformer.cli.source_fields import list_fields
from jaxformer.errors import UserError, did_you_mean, typed_command
from jaxformer.version import __version__

# Module and function of each command, in the order of --help.
COMMANDS = {
    "train": "train.train",
    "distill": "distill.distill",
    "translate": "translate.translate",
    "serve": "serve.serve",
    "score": "score.score",
    "evaluate": "evaluate.evaluate",
    "compare": "compare.compare",
    "generate": "generate.generate",
    "parse": "parse.parse",
    "classify": "classify.classify",
    "evalb": "evalb.evalb",
    "doctor": "doctor.doctor",
    "replay": "replay.replay",
    "average": "convert.average",
    "quantize": "convert.quantize",
    "shortlist": "shortlist.shortlist",
    "augment": "augment.augment",
    "attention": "plot.attention",
    "plot": "plot.plot",
    "import": "convert.import_model",
    "data": "catalog.data",
    "export": "convert.export_model",
}


# Lists in the help of commands, by their placeholder.
LISTS = {
    "configs": list_configs,
    "fields": functools.partial(list_fields, usual=True),
    "corpora": list_corpora,
}


def parse_arguments(arguments: Sequence[str] | None = None) -> functools.partial[None]:
    """Returns the function of a command with its arguments, by default the process's."""
    words = _join_overrides(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] not in COMMANDS:
        _end_without_command(words)

    command = words[0]
    function = command_function(command)
    parser = command_parser(typed_command(command), function, LISTS)
    options, unknown = parser.parse_known_args(words[1:])
    values = vars(options)

    has_overrides = "overrides" in inspect.signature(function).parameters
    if has_overrides:
        values["overrides"] = [word for word in unknown if word.startswith("--config.")]
        unknown = [word for word in unknown if word not in values["overrides"]]

    if command == "train" and values["config"] is None:
        # Not left to argparse: Python 3.11 finds no optional positional after --workdir.
        names = [word for word in unknown if not word.startswith("-")]
        if names:
            values["config"] = names[0]
            unknown = [word for word in unknown if word != names[0]]

    if unknown:
        raise UserError(_unknown(unknown[0], parser, has_overrides))
    return functools.partial(function, **keyword_arguments(function, values))


def _end_without_command(words: Sequence[str]) -> NoReturn:
    """Prints the help or the version, or reports that the first argument is not a command."""
    parser = _make_parser()
    if not words:  # A script whose arguments are missing must not succeed.
        parser.print_help(sys.stderr)
        raise SystemExit(2)

    first = words[0]
    if not first.startswith("-"):
        hint = did_you_mean(first, COMMANDS, "see jaxformer --help")
        raise UserError(f"unknown command {first}; {hint}")
    parser.parse_args([first])  # --help or --version, or an error
    parser.error(f"expected a command first: got {first}")


def command_function(name: str) -> Callable[..., None]:
    module, function = COMMANDS[name].split(".")
    return getattr(importlib.import_module(f"jaxformer.cli.{module}"), function)


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
    hint = did_you_mean(name, known, f"see {parser.prog} --help", meaning=known.__getitem__)
    return f"unknown argument {word}; {hint}"


def _plain_name(flag: str) -> str:
    return flag.strip("-").replace("-", "_")


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


def _make_parser() -> CommandParser:
    """Returns the parser of the first argument, with a list of all commands."""
    parser = CommandParser(
        prog="jaxformer",
        description="Trains models, and translates, generates, parses, scores and plots with them.",
        epilog="Every command has its own --help, with an example. Exit codes: 0 done, 1 failed, 2 "
        "mistake in the input, 3 some lines failed, 130 interrupted. Of "
        "train also 75: stopped, the same command resumes.",
    )
    parser.add_argument("--version", action="version", version=f"jaxformer {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name in COMMANDS:
        commands.add_parser(name, help=summary(command_function(name)))
    return parser
