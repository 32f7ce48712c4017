"""EVALB's parameters, and their ``.prm`` files."""

import dataclasses
import difflib
import functools
import re
from collections.abc import Iterable
from typing import Any

from jaxformer.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParameterFile:
    """Parameters of EVALB; the defaults are ``COLLINS.prm``, which published results use.

    Attributes:
      debug: 1 to list the words and brackets of each sentence in the table.
      max_error: Errors up to this number plus one are tolerated, as in EVALB.
      cutoff_length: Sentences of at most this many words have a separate summary.
      labeled: Compare the labels of brackets.
      delete_labels: Words with these tags and brackets with these labels do not count.
      delete_labels_for_length: Words with these tags do not count in the length of a sentence.
      quote_labels: Tags of quotation marks; a mark that only one file deletes is restored.
      equal_labels: Pairs of labels or tags that count as equal.
      equal_words: Pairs of words that count as equal.
    """

    debug: int = 0
    max_error: int = 10
    cutoff_length: int = 40
    labeled: bool = True
    delete_labels: tuple[str, ...] = ("TOP", "-NONE-", ",", ":", "``", "''", ".")
    delete_labels_for_length: tuple[str, ...] = ("-NONE-",)
    quote_labels: tuple[str, ...] = ()
    equal_labels: tuple[tuple[str, str], ...] = (("ADVP", "PRT"),)
    equal_words: tuple[tuple[str, str], ...] = ()

    def same_label(self, one: str, other: str) -> bool:
        """Returns True if two labels or tags count as equal."""
        return one == other or not {(one, other), (other, one)}.isdisjoint(self.equal_labels)

    def same_word(self, one: str, other: str) -> bool:
        """Returns True if two words count as equal."""
        return one == other or not {(one, other), (other, one)}.isdisjoint(self.equal_words)

    @functools.cached_property
    def deleted_brackets(self) -> frozenset[str]:
        """Labels of brackets that do not count: ``delete_labels`` and labels equal to them."""
        labels = {label for pair in self.equal_labels for label in pair} | {*self.delete_labels}
        return frozenset(
            label
            for label in labels
            if any(self.same_label(label, deleted) for deleted in self.delete_labels)
        )


COLLINS = ParameterFile()

_NUMBERS = {
    "DEBUG": "debug",
    "MAX_ERROR": "max_error",
    "CUTOFF_LEN": "cutoff_length",
    "LABELED": "labeled",
}
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
_LISTS = {
    "DELETE_LABEL": "delete_labels",
    "DELETE_LABEL_FOR_LENGTH": "delete_labels_for_length",
    "QUOTE_LABEL": "quote_labels",
}
_PAIRS = {"EQ_LABEL": "equal_labels", "EQ_WORD": "equal_words"}


def read_parameters(lines: Iterable[str], name: str) -> ParameterFile:
    """Parses a ``.prm`` file; lists of labels and words that it lacks are empty.

    Args:
      lines: Lines such as ``DELETE_LABEL TOP``; lines that begin with ``#`` are comments.
      name: Name of the file in error messages.

    Raises:
      UserError: A keyword is unknown, or its value is missing or malformed.
    """
    fields: dict[str, Any] = {field: () for field in (*_LISTS.values(), *_PAIRS.values())}
    for number, line in enumerate(lines, 1):
        if line.startswith("#") or not line.strip():
            continue
        keyword, *values = line.split()
        if keyword in _NUMBERS and len(values) == 1 and _NUMBER.fullmatch(values[0]):
            fields[_NUMBERS[keyword]] = int(values[0])
        elif keyword in _LISTS and len(values) == 1:
            fields[_LISTS[keyword]] += (values[0],)
        elif keyword in _PAIRS and len(values) == 2:
            fields[_PAIRS[keyword]] += (tuple(values),)
        else:
            raise UserError(f"{name}:{number}: {_expected(keyword)}, got {line.strip()!r:.200}")
    return ParameterFile(**{**fields, "labeled": bool(fields.get("labeled", True))})


def _expected(keyword: str) -> str:
    if keyword in _NUMBERS:
        return f"expected a number after {keyword}"
    if keyword in _LISTS:
        return f"expected one label after {keyword}"
    if keyword in _PAIRS:
        return f"expected two words after {keyword}"
    keywords = [*_NUMBERS, *_LISTS, *_PAIRS]
    close = difflib.get_close_matches(keyword, keywords, n=1)
    return f"expected {close[0] if close else ', '.join(keywords)}"
