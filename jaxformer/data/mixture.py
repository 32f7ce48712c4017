"""Several corpora in one: ``data.train="news:1,captions:3"``."""

import collections
import hashlib
import re
from collections.abc import Iterator

import numpy as np

from jaxformer.data.corpus import Corpus, VerifiedCorpus
from jaxformer.errors import UserError

_LARGEST_WEIGHT = 1000
_WEIGHTED = re.compile(r"(.+):(\d[\d.]*)")


def parse_mixture(split: str) -> dict[str, int]:
    """Returns the corpora of a split and their weights; no corpora if the split is a single one.

    >>> parse_mixture("news:1,captions:3"), parse_mixture("news")
    ({'news': 1, 'captions': 3}, {})
    """
    names = split.split(",")
    found = [match for name in names if (match := _WEIGHTED.fullmatch(name))]
    if len(names) == 1 or not found:
        return {}
    if len(found) < len(names):
        raise UserError(
            "expected a weight for each corpus, such as news:1,captions:3, or for none: got "
            f"{split!r}"
        )
    for match in found:
        if not match[2].isdigit() or not 1 <= int(match[2]) <= _LARGEST_WEIGHT:
            raise UserError(
                f"expected weights that are whole numbers from 1 to {_LARGEST_WEIGHT}, how often a "
                f"pair comes in an epoch: got {match[2]} in {split!r}"
            )
    if len({match[1] for match in found}) < len(found):
        raise UserError(f"expected different corpora: got {split!r}")
    return {match[1]: int(match[2]) for match in found}


class MixedCorpus:
    """A corpus with splits such as "news:1,captions:3": the pairs of several splits in turn.

    Each pair comes once. :meth:`repetitions` returns how often it comes in an epoch of training.
    """

    def __init__(self, corpus: Corpus) -> None:
        self.target_symbols = corpus.target_symbols
        self._corpus = VerifiedCorpus(corpus)
        self._sizes: dict[str, int] = {}

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        for each in _splits(split):
            size = 0
            for pair in self._corpus.pairs(each):
                size += 1
                yield pair
            self._sizes[each] = size

    def fingerprint(self, split: str) -> str:
        """Returns a hash of the fingerprints of all splits, without their weights."""
        prints = map(self._corpus.fingerprint, _splits(split))
        return hashlib.sha256(" ".join(prints).encode()).hexdigest()

    def place(self, split: str, number: int, side: int) -> str:
        """Returns where a side of a pair is; see :class:`~jaxformer.Corpus`."""
        ends = self._ends(split)
        index = int(np.searchsorted(ends, number, side="right"))
        first = int(ends[index - 1]) if index else 0
        return self._corpus.place(_splits(split)[index], number - first, side)

    def notes(self, split: str) -> list[str]:
        """Returns log messages about the splits; see :class:`~jaxformer.Corpus`."""
        self._ends(split)
        weights = [
            f"{each}: {self._sizes[each]:,} pairs, each {weight} times an epoch"
            for each, weight in parse_mixture(split).items()
        ]
        return [*weights, *(note for each in _splits(split) for note in self._corpus.notes(each))]

    def repetitions(self, split: str, numbers: np.ndarray) -> np.ndarray:
        """Returns how often pairs of a split come in an epoch, given their numbers in it."""
        weights = np.array(list(parse_mixture(split).values()))
        return weights[np.searchsorted(self._ends(split), numbers, side="right")]

    def _ends(self, split: str) -> np.ndarray:
        """Returns the number of pairs up to the end of each split."""
        splits = _splits(split)
        if not self._sizes.keys() >= set(splits):
            collections.deque(self.pairs(split), maxlen=0)  # Counts them.
        return np.cumsum([self._sizes[each] for each in splits])


def _splits(split: str) -> list[str]:
    return list(parse_mixture(split)) or [split]
