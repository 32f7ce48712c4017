"""Argument parsers built from functions: options from the signature, help from the docstring.

A keyword-only parameter ``n_best: int | None = None`` is the option ``--n-best N``; any other
parameter is positional. A parameter whose type is a dataclass stands for the fields of the
dataclass. ``Annotated`` adds what neither the type nor the docstring has: a :class:`Value`, or
for a dictionary of settings its :class:`Fields`. A docstring has a summary, and then sections:

- "Options:", or title and description of a group of options, as in "Format: A score is a log
  probability.", and for each option an indented line ``name (METAVAR): help``;
- "Usage:", which replaces the list of all options;
- "Example:", the last one, printed verbatim, except for lines such as ``{configs}``, which stand
  for a list.
"""

import argparse
import dataclasses
import inspect
import re
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, NoReturn, Union, get_args, get_origin, get_type_hints

from jaxformer.errors import UserError
from jaxformer.fields import facts_of

# Placeholders of the values of each type that an option can have; a bool is a flag without a value.
_METAVARS = {int: "N", float: "X", str: "TEXT", bool: None}
# Options whose names differ from their parameters.
_FLAGS = {
    "num_samples": "--samples",
    "num_processes": "--num_processes",
    "process_id": "--process_id",
}

# The line between the sections of a docstring and its example.
_EXAMPLE = "\n\nExample:\n"
# The start of an entry of a section. The other lines of the entry are indented further.
_NEXT_ENTRY = re.compile(r"\n  (?! )")
# An entry of a section: name, optional metavar and help.
_ENTRY = re.compile(r"(\w+)(?: \((.+?)\))?: (.*)", re.DOTALL)
# The place of the blank in "beam search", the group of BeamSearch.
_WORD_BOUNDARY = re.compile(r"(?<=[a-z])(?=[A-Z])")
# A cross-reference of Sphinx, such as :func:`~jaxformer.train`.
_REFERENCE = re.compile(r":\w+:`~?([^`]*)`")


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
    names: tuple[str, ...] = ()  # (): all fields that a word of the command line can give
    without: tuple[str, ...] = ()


class _Parameter(NamedTuple):
    """A parameter of a function, or a field of a dataclass."""

    name: str
    hint: Any  # type, without None and metadata
    metadata: Any  # of Annotated, or of the items of a sequence; None without any
    default: Any  # inspect.Parameter.empty without one
    positional: bool

    @property
    def is_required(self) -> bool:
        return self.default is inspect.Parameter.empty

    @property
    def is_dataclass(self) -> bool:
        return isinstance(self.hint, type) and dataclasses.is_dataclass(self.hint)

    @property
    def is_word(self) -> bool:
        """True if a word of the command line can give the value."""
        return self.hint in _METAVARS or get_origin(self.hint) is Literal


class _Option(NamedTuple):
    """An option or positional argument of a command."""

    parameter: _Parameter
    value: Value
    description: str | None = None  # of the option's group


class _Documentation(NamedTuple):
    """The sections of a docstring."""

    descriptions: dict[str, str | None]  # of groups of options, by title
    entries: dict[str, Value]  # by the name of the parameter


class _Formatter(argparse.HelpFormatter):
    """Wraps descriptions, and keeps the lines of examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("Example:"):
            return text
        return super()._fill_text(text, width, indent)


class CommandParser(argparse.ArgumentParser):
    """A parser that reports errors in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")


def flag(name: str) -> str:
    """Returns the option for a parameter: ``--n-best`` for ``n_best``."""
    return _FLAGS.get(name, f"--{name.replace('_', '-')}")


def summary(function: Callable[..., None]) -> str:
    """Returns the summary of a function's docstring, for a list."""
    docstring = inspect.cleandoc(function.__doc__ or "")
    return _as_help(docstring.partition("\n\n")[0])


def command_parser(
    prog: str, function: Callable[..., None], lists: Mapping[str, Callable[[], str]] | None = None
) -> CommandParser:
    """Returns a parser for the arguments of a function, whose example has lists by name."""
    docstring = inspect.cleandoc(function.__doc__ or "")
    text, _, example = docstring.partition(_EXAMPLE)
    for name, make_list in (lists or {}).items():
        placeholder = f"  {{{name}}}"
        # A list is made only where it is shown, since it may read many files.
        if placeholder in example:
            example = example.replace(placeholder, textwrap.indent(make_list(), "  "))

    parser = CommandParser(
        prog=prog,
        description=text.partition("\n\n")[0],
        epilog=f"Example:\n{example}",
        formatter_class=_Formatter,
        # An abbreviation may become ambiguous when an option is added.
        allow_abbrev=False,
    )

    groups: dict[str, argparse._ActionsContainer] = {"options": parser}
    for option in _options(function):
        title = option.value.group
        if title not in groups:
            groups[title] = parser.add_argument_group(title, option.description)
        _add_argument(groups[title], option)

    usage = re.search(r"^Usage: (.*)", text, re.MULTILINE)
    parser.usage = f"{prog} {usage[1]}" if usage else _usage(parser)
    return parser


def _usage(parser: CommandParser) -> str:
    """Returns the usage in one line: positional and required arguments, and [OPTIONS]."""
    words = [parser.prog]
    for action in parser._actions:
        is_positional = not action.option_strings
        if not (action.required or is_positional):
            continue

        argument = str(action.metavar or action.dest).upper()
        if not is_positional:
            argument = f"{action.option_strings[0]} {argument}"
        if action.nargs == "*":
            argument = f"[{argument} ...]"
        elif action.nargs == "+":
            argument = f"{argument} ..."
        words.append(argument)
    return " ".join([*words, "[OPTIONS]"])


def field_help(kind: Any) -> dict[str, str]:
    """Returns the help of the documented fields of a dataclass, in the order of the fields."""
    entries = _documentation(kind).entries
    names = [field.name for field in dataclasses.fields(kind)]
    return {name: entries[name].help for name in names if name in entries}


def keyword_arguments(kind: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a function or dataclass, from the values of all options."""
    arguments = {}
    for each in _parameters(kind):
        name = each.name
        if each.is_dataclass:
            arguments[name] = each.hint(**keyword_arguments(each.hint, values))
        elif isinstance(each.metadata, Fields):
            # Fields that are not given keep the values of the run's config.
            arguments[name] = given = {}
            for option in _field_options(each.metadata):
                field = option.parameter.name
                if values[field] is not None:
                    given[field] = values[field]
        else:
            arguments[name] = values[name]
    return arguments


def _options(kind: Any) -> Iterator[_Option]:
    """Yields the options of a function or dataclass, in the order of its parameters."""
    descriptions, entries = _documentation(kind)
    for each in _parameters(kind):
        if each.is_dataclass:
            yield from _options(each.hint)
        elif isinstance(each.metadata, Fields):
            for option in _field_options(each.metadata):
                yield option._replace(description=descriptions.get(option.value.group))
        elif each.name != "overrides":  # --config.FIELD, which is not an option of argparse
            # The docstring has the help, and the type what several commands share.
            shared = each.metadata or Value()
            documented = entries.get(each.name, shared)
            value = documented._replace(
                metavar=documented.metavar or shared.metavar,
                convert=shared.convert,
            )
            yield _Option(each, value, descriptions.get(value.group))


def _add_argument(group: argparse._ActionsContainer, option: _Option) -> None:
    parameter = option.parameter
    value = option.value

    # argparse formats the help with the operator %.
    settings: dict[str, Any] = {"help": value.help.replace("%", "%%")}
    if type(parameter.default) is int:
        settings["help"] += f" (default: {parameter.default})"

    hint = parameter.hint
    if get_origin(hint) is Sequence:
        (hint,) = get_args(hint)
        may_be_empty = parameter.positional and not parameter.is_required
        settings["nargs"] = "*" if may_be_empty else "+"

    if hint is bool and parameter.default is None:
        # None differs from False, so that the option has a form --no-NAME.
        settings["action"] = argparse.BooleanOptionalAction
    elif hint is bool:
        settings["action"] = "store_true"
    elif get_origin(hint) is Literal:
        choices = get_args(hint)
        settings["choices"] = choices
        settings["type"] = type(choices[0])
    else:
        settings["type"] = value.convert or hint
        settings["metavar"] = value.metavar or _METAVARS[hint]

    if parameter.positional:
        group.add_argument(parameter.name, **settings)
        return
    settings["dest"] = parameter.name
    settings["required"] = parameter.is_required
    settings["default"] = parameter.default
    group.add_argument(flag(parameter.name), **settings)


def _parameters(kind: Any) -> Iterator[_Parameter]:
    """Yields the parameters of a function, or the fields of a dataclass."""
    hints = get_type_hints(kind, include_extras=True)
    for name, parameter in inspect.signature(kind).parameters.items():
        hint = _without_none(hints[name])
        is_sequence = get_origin(hint) is Sequence
        if is_sequence:
            (hint,) = get_args(hint)

        metadata = None
        if hasattr(hint, "__metadata__"):  # Annotated
            hint, metadata = get_args(hint)[:2]
        if is_sequence:
            hint = Sequence[hint]
        yield _Parameter(
            name=name,
            hint=hint,
            metadata=metadata,
            default=parameter.default,
            positional=parameter.kind is not parameter.KEYWORD_ONLY,
        )


def _without_none(hint: Any) -> Any:
    """Returns the type of a union that an option can have, or else its first, except None."""
    if get_origin(hint) not in (types.UnionType, Union):
        return hint
    members = [member for member in get_args(hint) if member is not type(None)]
    simple = [member for member in members if member in _METAVARS]
    return (simple or members)[0]


def _field_options(fields: Fields) -> Iterator[_Option]:
    """Yields the options for the fields of some dataclasses; None means that one is not given."""
    kinds = fields.kinds()
    for kind in kinds:
        entries = _documentation(kind).entries
        facts = facts_of(kind)
        own_group = _WORD_BOUNDARY.sub(" ", kind.__name__).lower()

        for each in _parameters(kind):
            if not facts[each.name].in_files or not _is_chosen(each, fields):
                continue
            owners = [owner for owner in kinds if _has_parameter(owner, each.name)]
            if kind is not owners[0]:
                continue  # A field of several dataclasses is one option, of the first.

            is_common = len(owners) == len(kinds)
            group = fields.group if is_common else own_group
            value = entries.get(each.name, Value())
            yield _Option(
                each._replace(default=None, positional=False),
                value._replace(group=group),
            )


def _has_parameter(kind: type, name: str) -> bool:
    return name in inspect.signature(kind).parameters


def _is_chosen(field: _Parameter, fields: Fields) -> bool:
    """Returns True if a field is an option."""
    if field.name in fields.without:
        return False
    if fields.names:
        return field.name in fields.names
    return field.is_word


def _documentation(kind: Any) -> _Documentation:
    """Reads the docstring of a function, or of a dataclass and its bases."""
    descriptions: dict[str, str | None] = {}
    entries: dict[str, Value] = {}
    # The docstring of a class replaces entries of its bases.
    for documented in reversed(getattr(kind, "__mro__", (kind,))):
        docstring = inspect.cleandoc(documented.__doc__ or "")
        _, *sections = docstring.partition(_EXAMPLE)[0].split("\n\n")
        for section in sections:
            heading, *section_entries = _NEXT_ENTRY.split(section)
            title, _, description = heading.partition(":")
            group = title.lower()
            descriptions[group] = description.strip() or None

            for entry in section_entries:
                found = _ENTRY.match(entry)
                if found is not None:
                    name, metavar, text = found.groups()
                    entries[name] = Value(_as_help(text), group, metavar)
    return _Documentation(descriptions, entries)


def _as_help(text: str) -> str:
    """Returns a docstring sentence as help: without markup, capital letter and period."""
    text = " ".join(text.split())
    text = _REFERENCE.sub(r"\1", text)
    text = text.replace("``", "")

    is_acronym = text[:2].isupper()
    if not is_acronym:
        text = text[:1].lower() + text[1:]
    return text.removesuffix(".")
