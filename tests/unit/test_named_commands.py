"""Commands in messages, docstrings, help and prose have options that exist."""

import ast
import dataclasses
import functools
import re
from collections.abc import Iterator

import pytest

from jaxformer.cli.arguments import known_commands
from jaxformer.cli.signatures import command_parser
from jaxformer.config import Config
from jaxformer.kinds.selection import known_kinds
from jaxformer.search.serialization import search_fields

from ..printed import PAGES, PROJECT, prose

# Verbs that may follow the name of the package in a sentence.
VERBS = {"does", "is", "was", "has", "or"}
COMMAND = re.compile(r"(?<![\w/.-])jaxformer ([a-z]+)\b((?: (?!\|)[^\s`;,.()]\S*)*)")
FIELD = re.compile(r"--config\.([a-z]+)\.([a-z]\w*)")


def strings(source: str) -> Iterator[str]:
    """Yields the strings of a module; "X" stands for values that are filled in."""
    tree = ast.parse(source)

    parts = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(map(_text, node.values))
            parts |= {id(part) for part in ast.walk(node)}

    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in parts:
                yield text


def _text(part: ast.expr) -> str:
    match part:
        case ast.Constant(value=str(text)):
            return text
        case ast.FormattedValue(
            value=ast.Call(func=ast.Name(id="typed_command"), args=[ast.Constant(value=str(name))])
        ):
            return f"jaxformer {name}"
    return "X"


def texts() -> Iterator[tuple[str, str]]:
    """Yields all texts for users, with the files that they are in."""
    for folder in ("jaxformer", "configs"):
        for path in sorted((PROJECT / folder).rglob("*.py")):
            for text in strings(path.read_text(encoding="utf-8")):
                yield path.name, text

    for page in PAGES:
        # History names options of earlier versions.
        if page.name != "CHANGELOG.md" and page.parent.name != "log":
            quoted = re.findall(r"`([^`\n]+)`", prose(page))
            yield page.name, "\n".join(quoted)


def is_possible(name: str, options: set[str]) -> bool:
    if name in known_commands():
        return options <= flags(name)
    return name in VERBS


@functools.cache
def flags(name: str) -> set[str]:
    command = known_commands()[name]
    parser = command_parser(f"jaxformer {name}", command.run, command.lists)
    return set(re.findall(r"--[a-z][a-z_-]*", parser.format_usage() + parser.format_help()))


def mistakes(text: str) -> list[str]:
    """Returns the commands in a text that do not exist, or whose options do not."""
    found = []
    for command in COMMAND.finditer(text):
        name, rest = command.groups()
        options = set(re.findall(r"(?<=\s)--[a-z][a-z_-]*(?![\w.-])", rest))
        if not is_possible(name, options):
            found.append(command[0])

    for field in FIELD.finditer(text):
        if field.groups() not in fields():
            found.append(field[0])
    return found


@functools.cache
def fields() -> set[tuple[str, str]]:
    """Returns all fields of configs, of any kind, with their sections."""
    sections = {
        "data": [kind.data for kind in known_kinds()],
        "model": [network.section for kind in known_kinds() for network in kind.networks],
        "training": [type(Config().training)],
        "mesh": [type(Config().mesh)],
    }

    known = {("search", name) for name in search_fields()}
    for section, classes in sections.items():
        for each in classes:
            known |= {(section, field.name) for field in dataclasses.fields(each)}
    return known


def test_commands_in_texts_exist():
    found = []
    for file, text in texts():
        found += [(file, mistake) for mistake in mistakes(text)]

    assert found == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run jaxformer train NAME --workdir X", 0),
        ("run jaxformer trian NAME", 1),
        ("jaxformer average --latest 5", 1),
        ("jaxformer does not know X=X", 0),
        ("give --config.model.vocab_size=8", 0),
        ("give --config.model.vocabulary=8", 1),
    ],
)
def test_mistakes_are_found(text, expected):
    assert len(mistakes(text)) == expected


def test_strings_are_read_as_users_see_them():
    source = 'f"run {typed_command(\'train\')} --workdir {folder}"\n"one"\n'
    assert list(strings(source)) == ["run jaxformer train --workdir X", "one"]
