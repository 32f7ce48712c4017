"""A validation split that is held out from the training text."""

import hashlib
import itertools
import re
from collections.abc import Iterator

from jaxformer.data.corpus import Corpus, DataConfig, VerifiedCorpus, open_corpus, parse_mixture
from jaxformer.errors import UserError


def hold_out(corpus: Corpus, train: str, valid: str) -> Corpus:
    """Returns a corpus whose split ``valid``, if it is a share such as "5%", is part of ``train``.

    The share is drawn by a hash of the source, so that all copies of a pair, and all translations
    of a sentence, are in the same split. A pair stays in its split when others are added.
    """
    if not re.fullmatch(r"[\d.]+%", valid):
        return corpus
    if not re.fullmatch(r"\d+(\.\d+)?%", valid) or not 0 < float(valid[:-1]) < 100:
        raise UserError(f"data.valid: expected a share from 0 % to 100 %, such as 5%: got {valid}")
    return HeldOutCorpus(corpus, train, valid)


def open_splits(data: DataConfig, corpus: Corpus | None = None) -> VerifiedCorpus:
    """Returns a corpus, by default the config's, with its splits; treebanks must be given."""
    corpus = open_corpus(data) if corpus is None else corpus
    return VerifiedCorpus(hold_out(corpus, data.train, data.valid))


def training_pairs(data: DataConfig) -> Iterator[tuple[str, str]]:
    """Yields the sentence pairs of the training split, each once, except of treebanks."""
    return open_splits(data).pairs(data.train)


class HeldOutCorpus:
    """A corpus from :func:`hold_out`; it has the optional methods of a corpus, too."""

    def __init__(self, corpus: Corpus, train: str, valid: str) -> None:
        self.target_symbols = corpus.target_symbols
        self._corpus = VerifiedCorpus(corpus)  # It has the optional methods.
        self._valid, self._share = valid, float(valid[:-1]) / 100
        self._train = [*parse_mixture(train)] or [train]

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        return (pair for _, _, pair in self._number_pairs(split))

    def fingerprint(self, split: str) -> str:
        """Returns a hash of the whole training text, the share, and which split this is."""
        whole = [self._corpus.fingerprint(name) for name in self._names(split)]
        identity = (*whole, self._share, split == self._valid)
        return hashlib.sha256(repr(identity).encode()).hexdigest()

    def place(self, split: str, number: int, side: int) -> str:
        name, original, _ = next(itertools.islice(self._number_pairs(split), number, None))
        return self._corpus.place(name, original, side)

    def notes(self, split: str) -> list[str]:
        if split != self._valid:
            return self._corpus.notes(split)
        return [f"validation pairs: {split} of the training text, by the hash of the source"]

    def _names(self, split: str) -> list[str]:
        return self._train if split == self._valid else [split]

    def _number_pairs(self, split: str) -> Iterator[tuple[str, int, tuple[str, str]]]:
        """Yields training split, number in it, and pair, for each pair of a split."""
        for name in self._names(split):
            for number, pair in enumerate(self._corpus.pairs(name)):
                digest = hashlib.sha256(pair[0].encode("utf-8", "surrogatepass")).digest()
                held_out = int.from_bytes(digest[:8]) < self._share * 2**64
                if held_out == (split == self._valid):
                    yield name, number, pair
