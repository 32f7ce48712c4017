"""EVALB's parameters, and their ``.prm`` files."""

import dataclasses
import difflib
import functools
import re
from collections.abc import Iterable, Sequence
from typing import Any

from jaxformer.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParameterFile:
    """Parameters of EVALB; the defaults are ``COLLINS.prm``, which published results use."""

    debug: int = 0  # 1 to list the words and brackets of each sentence in the table
    max_error: int = 10  # Errors up to this number plus one are tolerated, as in EVALB.
    cutoff_length: int = 40  # Sentences of at most this many words have a separate summary.
    labeled: int = 1  # 0 to ignore the labels of brackets
    # Words with these tags, and brackets with these labels, do not count.
    delete_labels: tuple[str, ...] = (
        "TOP",
        "-NONE-",
        ",",
        ":",
        "``",
        "''",
        ".",
    )
    # Words with these tags do not count in the length of a sentence.
    delete_labels_for_length: tuple[str, ...] = ("-NONE-",)
    quote_labels: tuple[str, ...] = ()  # A mark that only one file deletes is restored.
    equal_labels: tuple[tuple[str, str], ...] = (("ADVP", "PRT"),)
    equal_words: tuple[tuple[str, str], ...] = ()

    def same_label(self, one: str, other: str) -> bool:
        return one == other or _is_pair(one, other, self.equal_labels)

    def same_word(self, one: str, other: str) -> bool:
        return one == other or _is_pair(one, other, self.equal_words)

    @functools.cached_property
    def deleted_brackets(self) -> frozenset[str]:
        """Labels of brackets that do not count: ``delete_labels`` and labels equal to them."""
        deleted = set(self.delete_labels)

        # Equality is not transitive: labels equal to an added one stay.
        for one, other in self.equal_labels:
            if other in self.delete_labels:
                deleted.add(one)
            if one in self.delete_labels:
                deleted.add(other)
        return frozenset(deleted)


def _is_pair(
    one: str,
    other: str,
    pairs: Sequence[tuple[str, str]],
) -> bool:
    """Returns whether two strings are among the pairs, in either order."""
    return (one, other) in pairs or (other, one) in pairs


COLLINS = ParameterFile()

# The parameter of each keyword, and the values after the keyword.
_KEYWORDS = {
    "DEBUG": ("debug", "a number"),
    "MAX_ERROR": ("max_error", "a number"),
    "CUTOFF_LEN": ("cutoff_length", "a number"),
    "LABELED": ("labeled", "a number"),
    "DELETE_LABEL": ("delete_labels", "one label"),
    "DELETE_LABEL_FOR_LENGTH": ("delete_labels_for_length", "one label"),
    "QUOTE_LABEL": ("quote_labels", "one label"),
    "EQ_LABEL": ("equal_labels", "two words"),
    "EQ_WORD": ("equal_words", "two words"),
}


def read_parameters(lines: Iterable[str], name: str) -> ParameterFile:
    """Parses the ``.prm`` file ``name``; missing lists of labels and words are empty."""
    # Without a line, a number has its default, but a list is empty.
    fields: dict[str, Any] = {}
    for field, values_after in _KEYWORDS.values():
        if values_after != "a number":
            fields[field] = ()

    for number, line in enumerate(lines, 1):
        is_comment = line.startswith("#")
        if is_comment or not line.strip():
            continue

        keyword, *values = line.split()
        match _KEYWORDS.get(keyword), values:
            case (field, "a number"), [value] if re.fullmatch("[0-9]{1,18}", value):
                fields[field] = int(value)
            case (field, "one label"), [label]:
                fields[field] += (label,)
            case (field, "two words"), [one, other]:
                fields[field] += ((one, other),)
            case _:
                expected = _expected_values(keyword)
                raise UserError(f"{name}:{number}: expected {expected}, got {line.strip()!r:.200}")

    return ParameterFile(**fields)


def _expected_values(keyword: str) -> str:
    """Returns what a line with this keyword should have been."""
    if keyword in _KEYWORDS:
        _, values_after = _KEYWORDS[keyword]
        return f"{values_after} after {keyword}"

    close = difflib.get_close_matches(keyword, _KEYWORDS, n=1)
    return close[0] if close else ", ".join(_KEYWORDS)
