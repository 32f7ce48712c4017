"""Findings about a corpus: the numbers of skipped and unusual pairs, and the first ones."""

import dataclasses
from collections.abc import Sequence

from jaxformer.data.characters import unusual_kinds

LONG, EMPTY = "too long", "empty"  # kinds of pairs that are skipped
# Pairs that are kept although both sides are equal. Many of them suggest a wrong file.
EQUAL = "the same text on both sides"
_MAX_PLACES = 10


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
