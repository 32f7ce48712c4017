"""Word and character error rates: edits between recognized texts and their references."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from jaxformer.errors import UserError


class Edits(NamedTuple):
    """Edits that turn references into recognized texts, and the length of the references."""

    edits: int
    length: int

    @property
    def rate(self) -> float:
        """Edits in percent of the length; insertions can raise it above 100."""
        if not self.edits:
            return 0.0
        if not self.length:
            return 100.0
        return 100 * self.edits / self.length

    def __add__(self, other: "Edits") -> "Edits":  # pyright: ignore[reportIncompatibleMethodOverride]
        edits = self.edits + other.edits
        length = self.length + other.length
        return Edits(edits, length)


class ErrorRates(NamedTuple):
    """Error rates of a corpus, in %: all its edits by the length of all its references."""

    words: float
    characters: float


def edit_distance(given: Sequence[object], reference: Sequence[object]) -> int:
    """Returns the fewest insertions, deletions and substitutions between two sequences.

    >>> edit_distance("kitten", "sitting")
    3
    """
    # Equal numbers for equal elements, which NumPy compares all at once.
    numbers: dict[object, int] = {}
    rows = _number(given, numbers)
    columns = _number(reference, numbers)

    # Distances between the elements so far and each beginning of ``reference``, [R + 1].
    places = np.arange(len(columns) + 1)
    distances = places
    for count, element in enumerate(rows, start=1):
        # Deletes or substitutes the element of ``given``.
        best = distances + 1
        substituted = distances[:-1] + (columns != element)
        best[1:] = np.minimum(best[1:], substituted)
        best[0] = count

        # Inserts elements of ``reference``: the least over all earlier places, and the way there.
        distances = np.minimum.accumulate(best - places) + places
    return int(distances[-1])


def _number(elements: Sequence[object], numbers: dict[object, int]) -> Int[np.ndarray, " n"]:
    """Returns the number of each element, and adds the numbers of new ones."""
    found = []
    for element in elements:
        number = numbers.setdefault(element, len(numbers))
        found.append(number)
    return np.array(found, np.int64)


def word_edits(given: str, reference: str) -> Edits:
    """Returns the edits of words, which blanks separate.

    >>> word_edits("the cat sat", "the hat sat down")
    Edits(edits=2, length=4)
    """
    given_words = given.split()
    expected = reference.split()
    edits = edit_distance(given_words, expected)
    return Edits(edits, len(expected))


def character_edits(given: str, reference: str) -> Edits:
    """Returns the edits of characters; each sequence of blanks is one space."""
    normalized = " ".join(given.split())
    expected = " ".join(reference.split())
    edits = edit_distance(normalized, expected)
    return Edits(edits, len(expected))


def error_rates(given: Sequence[str], references: Sequence[str]) -> ErrorRates:
    """Returns the word and the character error rate of recognized texts.

    >>> error_rates(["two one"], ["two two"]).words
    50.0
    """
    if len(given) != len(references):
        raise UserError(
            f"expected as many references as texts, {len(given)}, got {len(references)}"
        )

    words = Edits(0, 0)
    characters = Edits(0, 0)
    for text, reference in zip(given, references, strict=True):
        words += word_edits(text, reference)
        characters += character_edits(text, reference)
    return ErrorRates(words.rate, characters.rate)
