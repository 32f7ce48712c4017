"""Argument parsers built from functions: options from the signature, help from the docstring.

A keyword-only parameter ``n_best: int | None = None`` is the option ``--n-best N``; any other
parameter is positional. A parameter whose type is a dataclass stands for the fields of the
dataclass. A docstring has a summary, and then sections:

- "Options:", or title and description of a group of options, as in "Format: A score is a log
  probability.", and for each option an indented line ``name (METAVAR): help``;
- "Usage:", which replaces the list of all options;
- "Example:", the last one, printed verbatim, except for lines such as ``{configs}``, which stand
  for a list.
"""

import argparse
import collections.abc
import dataclasses
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, NoReturn

from jaxformer.errors import UserError

_METAVARS = {int: "N", float: "X", str: "TEXT", bool: None}
# Options whose names differ from their parameters.
_FLAGS = {
    "num_samples": "--samples",
    "num_processes": "--num_processes",
    "process_id": "--process_id",
}


class Value(NamedTuple):
    """Metadata of ``Annotated``: help for an option, unless a docstring has it, and conversion."""

    help: str = ""
    group: str = "options"
    metavar: str | None = None
    convert: Callable[[str], Any] | None = None  # of a word of the command line; None: the type


class Fields(NamedTuple):
    """Metadata of ``Annotated``: a dictionary of the given fields of dataclasses.

    The sections "Attributes" of their docstrings are the help. Fields that only one dataclass has
    form a group with its name.
    """

    kinds: Callable[[], tuple[type, ...]]  # imports the dataclasses
    group: str  # title of the group of their common fields
    names: tuple[str, ...] = ()  # (): all fields that can be given as a word, except ids
    without: tuple[str, ...] = ()


class _Formatter(argparse.HelpFormatter):
    """Wraps descriptions, and keeps the lines of examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("Example:") else super()._fill_text(text, width, indent)


class CommandParser(argparse.ArgumentParser):
    """A parser that reports errors in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")


def flag(name: str) -> str:
    """Returns the option for a parameter: ``--n-best`` for ``n_best``."""
    return _FLAGS.get(name, f"--{name.replace('_', '-')}")


def summary(function: Callable[..., None]) -> str:
    """Returns the summary of a function's docstring, for a list."""
    return _as_help(inspect.cleandoc(function.__doc__ or "").partition("\n\n")[0])


def command_parser(
    prog: str, function: Callable[..., None], lists: Mapping[str, Callable[[], str]] | None = None
) -> CommandParser:
    """Returns a parser for the arguments of a function, whose example has lists by name."""
    text, _, example = inspect.cleandoc(function.__doc__ or "").partition("\n\nExample:\n")
    for name, make in (lists or {}).items():
        if (line := f"  {{{name}}}") in example:
            example = example.replace(line, textwrap.indent(make(), "  "))
    usage = re.search(r"^Usage: (.*)", text, re.MULTILINE)
    parser = CommandParser(
        prog=prog,
        description=text.partition("\n\n")[0],
        epilog=f"Example:\n{example}",
        formatter_class=_Formatter,
        # An abbreviation may become ambiguous when an option is added.
        allow_abbrev=False,
    )
    groups: dict[str, argparse._ActionsContainer] = {"options": parser}
    for parameter, hint, value, description in _options(function):
        if value.group not in groups:
            groups[value.group] = parser.add_argument_group(value.group, description)
        _add_argument(groups[value.group], parameter, hint, value)
    parser.usage = f"{prog} {usage[1]}" if usage else _usage(parser)
    return parser


def _usage(parser: CommandParser) -> str:
    """Returns the usage in one line: positional and required arguments, and [OPTIONS]."""
    words = [parser.prog]
    for each in parser._actions:
        name = " ".join([*each.option_strings[:1], str(each.metavar or each.dest).upper()])
        if each.required or not each.option_strings:
            words.append({"*": f"[{name} ...]", "+": f"{name} ..."}.get(str(each.nargs), name))
    return " ".join([*words, "[OPTIONS]"])


def field_help(kind: Any) -> dict[str, str]:
    entries = _sections(kind)[1]
    return {f.name: entries[f.name].help for f in dataclasses.fields(kind) if f.name in entries}


def keyword_arguments(kind: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a function or dataclass, from the values of all options."""
    result = {}
    for parameter, hint, metadata in _parameters(kind):
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            result[parameter.name] = hint(**keyword_arguments(hint, values))
        elif isinstance(metadata, Fields):
            given = {field.name: values[field.name] for field, *_ in _fields(metadata)}
            result[parameter.name] = {n: value for n, value in given.items() if value is not None}
        else:
            result[parameter.name] = values[parameter.name]
    return result


def _options(kind: Any) -> Iterator[tuple[inspect.Parameter, Any, Value, str | None]]:
    """Yields parameter, type and help of each option, and the description of its group."""
    descriptions, entries = _sections(kind)
    for parameter, hint, metadata in _parameters(kind):
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            yield from _options(hint)
        elif isinstance(metadata, Fields):
            for field, field_hint, value in _fields(metadata):
                yield field, field_hint, value, descriptions.get(value.group)
        elif parameter.name != "overrides":
            shared = metadata or Value()
            own = entries.get(parameter.name, shared)
            own = own._replace(metavar=own.metavar or shared.metavar, convert=shared.convert)
            yield parameter, hint, own, descriptions.get(own.group)


def _add_argument(
    group: argparse._ActionsContainer, parameter: inspect.Parameter, hint: Any, value: Value
) -> None:
    required = parameter.default is parameter.empty
    positional = parameter.kind is not parameter.KEYWORD_ONLY
    settings: dict[str, Any] = {"help": value.help.replace("%", "%%")}
    if type(parameter.default) is int:
        settings["help"] += f" (default: {parameter.default})"
    if typing.get_origin(hint) is collections.abc.Sequence:
        (hint,) = typing.get_args(hint)
        settings["nargs"] = "*" if positional and not required else "+"
    if hint is bool:
        no_default = parameter.default is None
        settings["action"] = argparse.BooleanOptionalAction if no_default else "store_true"
    elif typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        settings |= {"choices": choices, "type": type(choices[0])}
    else:
        settings |= {"type": value.convert or hint, "metavar": value.metavar or _METAVARS[hint]}
    if not positional:
        settings |= {"dest": parameter.name, "required": required, "default": parameter.default}
    group.add_argument(parameter.name if positional else flag(parameter.name), **settings)


def _parameters(kind: Any) -> Iterator[tuple[inspect.Parameter, Any, Any]]:
    """Yields each parameter or field, its type without None, and the metadata of the type."""
    hints = typing.get_type_hints(kind, include_extras=True)
    for name, parameter in inspect.signature(kind).parameters.items():
        hint, metadata = hints[name], None
        if typing.get_origin(hint) in (types.UnionType, typing.Union):
            parts = [part for part in typing.get_args(hint) if part is not type(None)]
            hint = next((part for part in parts if part in _METAVARS), parts[0])
        several = typing.get_origin(hint) is collections.abc.Sequence
        one = typing.get_args(hint)[0] if several else hint
        if hasattr(one, "__metadata__"):
            one, metadata = typing.get_args(one)[:2]
        yield parameter, collections.abc.Sequence[one] if several else one, metadata


def _fields(fields: Fields) -> Iterator[tuple[inspect.Parameter, Any, Value]]:
    """Yields parameter, type and help of each field of some dataclasses."""
    kinds = fields.kinds()
    for kind in kinds:
        entries = _sections(kind)[1]
        for parameter, hint, _ in _parameters(kind):
            name, own = parameter.name, re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind.__name__).lower()
            owners = [k for k in kinds if name in inspect.signature(k).parameters]
            is_word = hint in _METAVARS or typing.get_origin(hint) is Literal
            chosen = name in fields.names if fields.names else is_word and not name.endswith("_id")
            if chosen and owners[0] is kind and name not in fields.without:
                group = fields.group if len(owners) == len(kinds) else own
                parameter = parameter.replace(default=None, kind=parameter.KEYWORD_ONLY)
                yield parameter, hint, entries.get(name, Value())._replace(group=group)


def _sections(kind: Any) -> tuple[dict[str, str | None], dict[str, Value]]:
    """Returns the descriptions of groups by their titles, and the options, from docstrings."""
    descriptions, entries = {}, {}
    for documented in reversed(getattr(kind, "__mro__", (kind,))):
        text = inspect.cleandoc(documented.__doc__ or "").partition("\n\nExample:\n")[0]
        for section in text.split("\n\n")[1:]:
            head, *lines = re.split(r"\n  (?! )", section)
            title, description = head.partition(":")[::2]
            descriptions[title.lower()] = description.strip() or None
            for line in lines:
                if found := re.match(r"(\w+)(?: \((.+?)\))?: (.*)", line, re.DOTALL):
                    entries[found[1]] = Value(_as_help(found[3]), title.lower(), found[2])
    return descriptions, entries


def _as_help(text: str) -> str:
    """Returns a docstring sentence as help: without markup, capital letter and period."""
    text = re.sub(r":\w+:`~?([^`]*)`", r"\1", " ".join(text.split())).replace("``", "")
    return (text if text[:2].isupper() else text[:1].lower() + text[1:]).removesuffix(".")
