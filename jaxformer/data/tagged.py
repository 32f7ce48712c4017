"""Sentences whose words have tags, such as names: one word on each line, as in CoNLL 2003."""

import pathlib
from collections.abc import Iterator
from typing import NamedTuple

from jaxformer.data.text_files import read_file
from jaxformer.errors import UserError

# Of CoNLL 2003: a line between two documents.
_DOCUMENT = "-DOCSTART-"


class TaggedSentence(NamedTuple):
    """The words of a sentence, and the tag of each."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    place: str  # of the first word, such as "train.txt:17"


def read_tagged(path: pathlib.Path) -> Iterator[TaggedSentence]:
    """Yields the sentences of a file.

    A line has a word first and its tag last, with spaces or tabs between, and a blank line ends a
    sentence. Columns in between, such as parts of speech, are ignored.
    """
    words: list[str] = []
    tags: list[str] = []
    first = 1
    for number, line in enumerate(read_file(path), start=1):
        columns = line.split()
        if columns and columns[0] != _DOCUMENT:
            if len(columns) < 2:
                raise UserError(
                    f"{path}:{number}: expected a word and its tag, with a space or a tab between, "
                    f"got {line!r:.50}"
                )
            if not words:
                first = number
            words.append(columns[0])
            tags.append(columns[-1])
        elif words:
            yield TaggedSentence(tuple(words), tuple(tags), f"{path}:{first}")
            words = []
            tags = []

    if words:
        yield TaggedSentence(tuple(words), tuple(tags), f"{path}:{first}")
