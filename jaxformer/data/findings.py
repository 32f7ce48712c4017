"""Findings about a corpus: the numbers of skipped and unusual pairs, and the first ones."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeAlias

from jaxformer.data.characters import unusual_kinds

LONG, EMPTY = "too long", "empty"  # kinds of pairs that are skipped
# Pairs that are kept although both sides are equal. Many of them suggest a wrong file.
EQUAL = "the same text on both sides"
_MAX_PLACES = 10
# Kinds of pairs that are skipped, in words; all others are kept.
_SKIPPED = {LONG: "too long, skipped", EMPTY: "with an empty side, skipped"}

# Returns the place of a side of a pair, such as "train.en:17", given their numbers from 0.
Place: TypeAlias = Callable[[int, int], str]


def list_first(first: Sequence[object], count: int) -> str:
    """Lists the first of ``count`` items.

    >>> list_first(["a:1", "b:7"], 9), list_first([3], 1)
    ('a:1, b:7 and 7 more', '3')
    """
    more = count - len(first)
    return ", ".join(map(str, first)) + (f" and {more:,} more" if more else "")


@dataclasses.dataclass
class Finding:
    """Number of pairs of one kind, and number and side (0 source, 1 target) of the first ten."""

    count: int = 0
    first: list[list[int]] = dataclasses.field(default_factory=list)


class Findings(dict[str, Finding]):
    """Findings by kind, without empty kinds."""

    def add(self, kind: str, number: int, side: int) -> None:
        finding = self.setdefault(kind, Finding())
        finding.count += 1
        if len(finding.first) < _MAX_PLACES:
            finding.first.append([number, side])

    def add_unusual(self, number: int, pair: tuple[str, str]) -> None:
        """Counts a kept pair, once for each kind of unusual text in it."""
        kinds = {kind: side for side in (1, 0) for kind in unusual_kinds(pair[side])}
        for kind, side in kinds.items():
            self.add(kind, number, side)
        if pair[0] == pair[1]:
            self.add(EQUAL, number, 0)

    def count(self, kind: str) -> int:
        return self[kind].count if kind in self else 0

    def summarize(self, what: str, place: Place, file: str) -> list[str]:
        """Returns a line with the count and the first place of each kind, if there is any.

        Args:
          what: Name of the items, such as "training pairs".
          place: Returns the place of an item.
          file: Name of the file in the run directory that has the lines of :meth:`list_places`.
        """
        found = [
            f"{finding.count:,} {_describe(kind)} (first {place(*_first_place(finding))})"
            for kind, finding in self.items()
        ]
        return [f"unusual {what}: {', '.join(found)}; see {file} in the workdir"] if found else []

    def list_places(self, what: str, place: Place) -> list[str]:
        """Returns a line for each kind, with its first ten places."""
        lines = []
        for kind, finding in self.items():
            places = [place(number, side) for number, side in finding.first]
            lines.append(f"{what} {_describe(kind)}: {list_first(places, finding.count)}")
        return lines


def _first_place(finding: Finding) -> tuple[int, int]:
    number, side = finding.first[0]
    return number, side


def _describe(kind: str) -> str:
    return _SKIPPED.get(kind, f"with {kind}, kept")
