"""Findings about a corpus: the numbers of skipped and unusual pairs, and the first ones."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeAlias

from jaxformer.data.characters import unusual_kinds

# Kinds of pairs that are skipped.
LONG = "too long"
EMPTY = "empty"
# Pairs that are kept although both sides are equal. Many of them suggest a wrong file.
EQUAL = "the same text on both sides"
_MAX_PLACES = 10
# Kinds of pairs that are skipped, in words; all others are kept.
_SKIPPED = {
    LONG: "too long, skipped",
    EMPTY: "with an empty side, skipped",
}

# Returns the place of a side of a pair, such as "train.en:17", given their numbers from 0.
Place: TypeAlias = Callable[[int, int], str]


def list_first(first: Sequence[object], count: int) -> str:
    """Lists the first of ``count`` items.

    >>> list_first(["a:1", "b:7"], 9), list_first([3], 1)
    ('a:1, b:7 and 7 more', '3')
    """
    listed = ", ".join(str(item) for item in first)
    more = count - len(first)
    if more:
        listed += f" and {more:,} more"
    return listed


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
        source, target = pair

        # A kind that both sides have is counted once, for the source.
        kinds = dict.fromkeys(unusual_kinds(target), 1)
        kinds |= dict.fromkeys(unusual_kinds(source), 0)
        for kind, side in kinds.items():
            self.add(kind, number, side)

        if source == target:
            self.add(EQUAL, number, 0)

    def count(self, kind: str) -> int:
        if kind not in self:
            return 0
        return self[kind].count

    def summarize(
        self,
        what: str,
        place: Place,
        file: str,
    ) -> list[str]:
        """Returns a line with the count and the first place of each kind, if there is any.

        Args:
          what: Name of the items, such as "training pairs".
          place: Returns the place of an item.
          file: Name of the file in the run directory that has the lines of :meth:`list_places`.
        """
        if not self:
            return []

        found = []
        for kind, finding in self.items():
            number, side = finding.first[0]
            first = place(number, side)
            found.append(f"{finding.count:,} {_describe(kind)} (first {first})")

        kinds = ", ".join(found)
        return [f"unusual {what}: {kinds}; see {file} in the workdir"]

    def list_places(self, what: str, place: Place) -> list[str]:
        """Returns a line for each kind, with its first ten places."""
        lines = []
        for kind, finding in self.items():
            places = [place(number, side) for number, side in finding.first]
            listed = list_first(places, finding.count)
            lines.append(f"{what} {_describe(kind)}: {listed}")
        return lines


def _describe(kind: str) -> str:
    return _SKIPPED.get(kind, f"with {kind}, kept")
