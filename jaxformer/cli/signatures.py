"""Argument parsers built from functions: options from the signature, help from the docstring.

>>> def greet(names: Sequence[str], *, times: int = 1, shout: bool = False) -> None:
...     '''Greet people.
...
...     Options:
...       names (NAME): people to greet
...       times: number of greetings
...
...     Voice: Greetings are quiet.
...       shout: except with this option
...
...     Example:
...       greet Ada Grace --times 2
...     '''
>>> print(command_parser("greet", greet).format_help())
usage: greet NAME ... [OPTIONS]
<BLANKLINE>
Greet people.
<BLANKLINE>
positional arguments:
  NAME        people to greet
<BLANKLINE>
options:
  -h, --help  show this help message and exit
  --times N   number of greetings (default: 1)
<BLANKLINE>
voice:
  Greetings are quiet.
<BLANKLINE>
  --shout     except with this option
<BLANKLINE>
Example:
  greet Ada Grace --times 2
<BLANKLINE>

A keyword-only parameter is an option, any other is positional. A parameter whose type is a
dataclass stands for the fields of the dataclass, such as options that several commands share.
``Annotated[type, Option(...)]`` adds what neither the type nor the docstring has,
``Annotated[str, Choices(...)]`` is one of several names, and
``Annotated[dict[str, Any], Fields(...)]`` is a dictionary of settings.
:mod:`jaxformer.cli.docstrings` describes docstrings.
"""

import argparse
import dataclasses
import inspect
import re
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import (
    Any,
    Literal,
    NamedTuple,
    NoReturn,
    Protocol,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

from jaxformer.cli.docstrings import as_help, read_docstring
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
# The place of the blank in "beam search", the group of BeamSearch.
_WORD_BOUNDARY = re.compile(r"(?<=[a-z])(?=[A-Z])")


class Option(NamedTuple):
    """Metadata of ``Annotated``: an option, except for what its docstring says.

    The help, group and placeholder of a docstring's entry replace these.
    """

    help: str = ""
    group: str = "options"
    metavar: str | None = None  # placeholder of the value; None: the type's
    convert: Callable[[str], Any] | None = None  # of a word of the command line; None: the type


@runtime_checkable
class Choice(Protocol):
    """One of the values that an option can have."""

    @property
    def name(self) -> str: ...

    @property
    def help(self) -> str: ...


class Choices(NamedTuple):
    """Metadata of ``Annotated``: one of several names, whose descriptions are the help."""

    known: Callable[[], Mapping[str, Choice]]  # by name


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
    with_hyphens = name.replace("_", "-")
    return _FLAGS.get(name, f"--{with_hyphens}")


def summary(function: Callable[..., None]) -> str:
    """Returns the summary of a function's docstring, for a list."""
    docstring = read_docstring(function)
    return as_help(docstring.summary)


def command_parser(
    prog: str, function: Callable[..., None], lists: Mapping[str, Callable[[], str]] | None = None
) -> CommandParser:
    """Returns a parser for the arguments of a function.

    Lines of its example such as ``{configs}`` stand for the list of this name.
    """
    docstring = read_docstring(function)
    example = docstring.example
    for name, make_list in (lists or {}).items():
        placeholder = f"  {{{name}}}"
        # A list is made only where it is shown, since it may read many files.
        if placeholder in example:
            listed = textwrap.indent(make_list(), "  ")
            example = example.replace(placeholder, listed)

    parser = CommandParser(
        prog=prog,
        description=docstring.summary,
        epilog=f"Example:\n{example}",
        formatter_class=_Formatter,
        # An abbreviation may become ambiguous when an option is added.
        allow_abbrev=False,
    )

    descriptions = _group_descriptions(function)
    groups: dict[str, argparse._ActionsContainer] = {"options": parser}
    for parameter, option in _options(function):
        title = option.group
        if title not in groups:
            description = descriptions.get(title) or None
            groups[title] = parser.add_argument_group(title, description)
        _add_argument(groups[title], parameter, option)

    usage = docstring.descriptions.get("usage")
    if usage:
        parser.usage = f"{prog} {usage}"
    else:
        parser.usage = _usage(parser)
    return parser


def _group_descriptions(function: Callable[..., None]) -> dict[str, str]:
    """Returns the descriptions of groups, from a function and the dataclasses of its parameters."""
    found = {}
    for each in _parameters(function):
        if each.is_dataclass:
            shared = read_docstring(each.hint)
            found |= shared.descriptions

    own = read_docstring(function)
    return found | own.descriptions


def _usage(parser: CommandParser) -> str:
    """Returns the usage in one line: positional and required arguments, and [OPTIONS]."""
    words = [parser.prog]
    for action in parser._actions:
        is_positional = not action.option_strings
        is_shown = is_positional or action.required
        if not is_shown:
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
    entries = read_docstring(kind).entries
    found = {}
    for field in dataclasses.fields(kind):
        if field.name in entries:
            entry = entries[field.name]
            found[field.name] = entry.help
    return found


def keyword_arguments(kind: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a function or dataclass, from the values of all options."""
    arguments = {}
    for each in _parameters(kind):
        name = each.name
        if each.is_dataclass:
            of_dataclass = keyword_arguments(each.hint, values)
            arguments[name] = each.hint(**of_dataclass)
        elif isinstance(each.metadata, Fields):
            arguments[name] = _given_fields(each.metadata, values)
        else:
            arguments[name] = values[name]
    return arguments


def _given_fields(fields: Fields, values: dict[str, Any]) -> dict[str, Any]:
    """Returns the values of fields that are given; others keep the values of the run's config."""
    given = {}
    for field, _ in _field_options(fields):
        value = values[field.name]
        if value is not None:
            given[field.name] = value
    return given


def _options(kind: Any) -> Iterator[tuple[_Parameter, Option]]:
    """Yields the options of a function or dataclass, in the order of its parameters."""
    for each in _parameters(kind):
        if each.is_dataclass:
            yield from _options(each.hint)
        elif isinstance(each.metadata, Fields):
            yield from _field_options(each.metadata)
        elif isinstance(each.metadata, Choices):
            known = each.metadata.known()
            yield _choice_option(each, known)
        elif each.name != "overrides":  # --config.FIELD, which is not an option of argparse
            option = each.metadata or Option()
            yield each, _document(kind, each.name, option)


def _choice_option(parameter: _Parameter, known: Mapping[str, Choice]) -> tuple[_Parameter, Option]:
    """Returns the option of a name, with the descriptions of all names as its help."""
    names: Any = tuple(known)
    one_of_them = parameter._replace(hint=Literal[names])

    descriptions = [f"{name}: {choice.help}" for name, choice in known.items()]
    option = Option(help="; ".join(descriptions))
    return one_of_them, option


def _document(kind: Any, name: str, option: Option) -> Option:
    """Returns an option with what the docstring of a function or dataclass says about it."""
    entry = read_docstring(kind).entries.get(name)
    if entry is None:
        return option
    return option._replace(
        help=entry.help,
        group=entry.group,
        metavar=entry.metavar or option.metavar,
    )


def _add_argument(
    group: argparse._ActionsContainer,
    parameter: _Parameter,
    option: Option,
) -> None:
    # argparse formats the help with the operator %.
    help_text = option.help.replace("%", "%%")
    if type(parameter.default) is int:
        help_text += f" (default: {parameter.default})"
    settings: dict[str, Any] = {"help": help_text}

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
        settings["type"] = option.convert or hint
        settings["metavar"] = option.metavar or _METAVARS[hint]

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
    signature = inspect.signature(kind)
    for name, parameter in signature.parameters.items():
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
    first, *_ = simple or members
    return first


def _field_options(fields: Fields) -> Iterator[tuple[_Parameter, Option]]:
    """Yields the options for the fields of some dataclasses; None means that one is not given."""
    kinds = fields.kinds()
    for kind in kinds:
        facts = facts_of(kind)
        own_group = _WORD_BOUNDARY.sub(" ", kind.__name__).lower()

        for each in _parameters(kind):
            facts_of_field = facts[each.name]
            if not facts_of_field.in_files or not _is_chosen(each, fields):
                continue

            owners = [owner for owner in kinds if _has_parameter(owner, each.name)]
            if kind is not owners[0]:
                continue  # A field of several dataclasses is one option, of the first.

            is_common = len(owners) == len(kinds)
            group = fields.group if is_common else own_group
            parameter = each._replace(default=None, positional=False)
            option = _document(kind, each.name, Option())
            yield parameter, option._replace(group=group)


def _has_parameter(kind: type, name: str) -> bool:
    return name in inspect.signature(kind).parameters


def _is_chosen(field: _Parameter, fields: Fields) -> bool:
    """Returns True if a field is an option."""
    if field.name in fields.without:
        return False
    if fields.names:
        return field.name in fields.names
    return field.is_word
