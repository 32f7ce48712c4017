"""Help texts from docstrings: of commands, and of the fields of dataclasses.

The docstring of a command has a summary, sections, and at the end an example::

    Score translations of a text.

    Options:
      workdir (DIR): run directory of the model
      output (FILE): file for the scores

    Format: A score is a log probability.
      normalize: divide scores by the number of tokens

    Usage: SOURCE TARGET --workdir DIR

    Example:
      jaxformer score --workdir runs/wmt14 source.en target.de

A section has a title, maybe a description, and an entry for each option of the group with this
title. An entry is the name of a parameter, maybe the placeholder of its value, and the help. The
section "Usage" replaces the usage. An example is printed as it is. The section "Attributes" of a
dataclass has the same form.
"""  # noqa: D214 (the example belongs to the indented docstring)

import functools
import inspect
import re
from typing import Any, NamedTuple

# The line between the sections of a docstring and its example.
_EXAMPLE = "\n\nExample:\n"
# The start of an entry of a section. The other lines of the entry are indented further.
_NEXT_ENTRY = re.compile(r"\n  (?! )")
# Name, optional placeholder, and help.
_ENTRY = re.compile(r"(\w+)(?: \((.+?)\))?: (.*)", re.DOTALL)
# A cross-reference of Sphinx, such as :func:`~jaxformer.train`.
_REFERENCE = re.compile(r":\w+:`~?([^`]*)`")


class Entry(NamedTuple):
    """The entry of a parameter or field."""

    help: str
    group: str  # the title of its section
    metavar: str | None  # placeholder of the value


class Docstring(NamedTuple):
    """A docstring, split at its sections; titles are in lower case."""

    summary: str
    descriptions: dict[str, str]  # of sections, by title; "" without one
    entries: dict[str, Entry]  # by the name of the parameter or field
    example: str


@functools.cache
def read_docstring(documented: Any) -> Docstring:
    """Returns the docstring of a function, or of a dataclass with the sections of its bases."""
    summary = ""
    example = ""
    descriptions: dict[str, str] = {}
    entries: dict[str, Entry] = {}

    # The object comes last: its summary and example remain, and its entries replace its bases'.
    with_bases = getattr(documented, "__mro__", (documented,))
    for each in reversed(with_bases):
        docstring = inspect.cleandoc(each.__doc__ or "")
        text, _, example = docstring.partition(_EXAMPLE)
        summary, *sections = text.split("\n\n")
        for section in sections:
            heading, *section_entries = _NEXT_ENTRY.split(section)
            title, _, description = heading.partition(":")
            group = title.lower()
            descriptions[group] = description.strip()

            for entry in section_entries:
                found = _ENTRY.match(entry)
                if found is not None:
                    name, metavar, help_text = found.groups()
                    entries[name] = Entry(as_help(help_text), group, metavar)

    return Docstring(summary, descriptions, entries, example)


def as_help(text: str) -> str:
    r"""Returns a docstring sentence as help: without markup, capital letter and period.

    >>> as_help("Path of :func:`~jaxformer.train`,\n  a ``str``.")
    'path of jaxformer.train, a str'
    """
    text = " ".join(text.split())
    text = _REFERENCE.sub(r"\1", text)
    text = text.replace("``", "")

    is_acronym = text[:2].isupper()
    if not is_acronym:
        text = text[:1].lower() + text[1:]
    return text.removesuffix(".")
