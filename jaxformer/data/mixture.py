"""Several corpora in one: ``data.train="news:1,captions:3"``."""

import collections
import hashlib
import itertools
import re
from collections.abc import Iterator

import numpy as np

from jaxformer.data.corpus import Corpus, verified
from jaxformer.errors import UserError

_LARGEST_WEIGHT = 1000
_WEIGHTED = re.compile(r"(.+):(\d[\d.]*)")


def parse_mixture(split: str) -> dict[str, int]:
    """Returns the corpora of a split and their weights; no corpora if the split is a single one.

    >>> parse_mixture("news:1,captions:3"), parse_mixture("news")
    ({'news': 1, 'captions': 3}, {})

    Raises:
      UserError: Only some corpora have a weight, a weight is not a whole number from 1 to 1000, or
        a corpus comes twice.
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

    Each pair comes once. :meth:`repetitions` says how often it comes in an epoch of training.
    """

    def __init__(self, corpus: Corpus) -> None:
        """Takes the corpus that has the splits."""
        self.target_symbols = corpus.target_symbols
        self._corpus = corpus
        self._sizes: dict[str, int] = {}

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """Yields the pairs of all splits in turn."""
        for each in _splits(split):
            size = 0
            for pair in self._corpus.pairs(each):
                size += 1
                yield pair
            self._sizes[each] = size

    def fingerprint(self, split: str) -> str:
        """Returns a hash of the fingerprints of all splits, without their weights."""
        prints = [self._corpus.fingerprint(each) for each in _splits(split)]
        return hashlib.sha256(" ".join(prints).encode()).hexdigest()

    def place(self, split: str, number: int, side: int) -> str:
        """Returns where a side of a pair is; see :class:`~jaxformer.Corpus`."""
        each, first = next(start for start in self._starts(split)[::-1] if start[1] <= number)
        return verified(self._corpus).place(each, number - first, side)

    def notes(self, split: str) -> list[str]:
        """Returns what the log says about the splits; see :class:`~jaxformer.Corpus`."""
        weights = [
            f"{each}: {self._sizes[each]:,} pairs, each {weight} times an epoch"
            for (each, _), weight in zip(
                self._starts(split), parse_mixture(split).values(), strict=False
            )
        ]
        return [*weights, *(n for e in _splits(split) for n in verified(self._corpus).notes(e))]

    def repetitions(self, split: str, numbers: np.ndarray) -> np.ndarray:
        """Returns how often pairs of a split come in an epoch, given their numbers in it."""
        firsts = [first for _, first in self._starts(split)]
        weights = np.array(list(parse_mixture(split).values()))
        return weights[np.searchsorted(firsts, numbers, side="right") - 1]

    def _starts(self, split: str) -> list[tuple[str, int]]:
        """Returns each split and the number of its first pair."""
        splits = _splits(split)
        if not self._sizes.keys() >= set(splits):
            collections.deque(self.pairs(split), maxlen=0)  # Counts them.
        ends = itertools.accumulate((self._sizes[each] for each in splits), initial=0)
        return list(zip(splits, ends, strict=False))


def _splits(split: str) -> list[str]:
    return list(parse_mixture(split)) or [split]
