"""Lines with a label or a number before one or two texts."""

import math
import pathlib
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from jaxformer.data.text_files import read_file
from jaxformer.errors import UserError

TextOrPair: TypeAlias = str | tuple[str, str]


class AnnotatedLine(NamedTuple):
    """A line of a file.

    Attributes:
      label: What precedes the texts.
      text: A text, or a pair of texts.
      place: Such as "train.tsv:17".
    """

    label: str
    text: TextOrPair
    place: str

    def texts(self) -> tuple[str, ...]:
        if isinstance(self.text, str):
            return (self.text,)
        return self.text


def read_labeled_pairs(path: pathlib.Path) -> Iterator[AnnotatedLine]:
    """Yields the lines of a file, each with a label and two texts, and a tab before each text."""
    for line in _read_columns(path, ["a label", "a text", "another text"]):
        if not line.label.strip():
            raise UserError(f"{line.place}: expected a label before the first tab, got none")
        yield line


def read_scored(path: pathlib.Path) -> Iterator[AnnotatedLine]:
    """Yields the lines of a file, each with a number and one or two texts, with tabs between.

    All lines have as many texts as the first one.
    """
    first = next(read_file(path), "")
    columns = ["a number", "a text", "another text"]
    if first.count("\t") == 1:
        columns.pop()

    for line in _read_columns(path, columns):
        parse_number(line)
        yield line


def parse_number(line: AnnotatedLine) -> float:
    """Returns the number of a line."""
    try:
        number = float(line.label)
    except ValueError:
        number = math.nan

    if not math.isfinite(number):
        raise UserError(
            f"{line.place}: expected a number before the first tab, got {line.label!r:.50}"
        )
    return number


def split_pair(line: str, place: str) -> tuple[str, str]:
    """Returns the two texts of a line."""
    first, *others = line.split("\t")
    if len(others) != 1:
        raise UserError(f"{place}: expected two texts with a tab between, got {len(others)} tabs")

    [second] = others
    return first, second


def _read_columns(path: pathlib.Path, names: list[str]) -> Iterator[AnnotatedLine]:
    for number, line in enumerate(read_file(path), start=1):
        place = f"{path}:{number}"
        columns = line.split("\t")
        if len(columns) != len(names):
            *first, last = names
            raise UserError(
                f"{place}: expected {', '.join(first)} and {last}, with tabs between, got "
                f"{len(columns) - 1} tabs; select these columns, for example with cut"
            )

        if len(columns) == 2:
            label, text = columns
        else:
            label, first_text, second_text = columns
            text = (first_text, second_text)
        yield AnnotatedLine(label, text, place)
