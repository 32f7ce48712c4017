"""A validation split that is held out from the training text."""

import contextlib
import hashlib
import itertools
import re
from collections.abc import Iterator

from jaxformer.data.corpus import Corpus, DataConfig, VerifiedCorpus, open_corpus, parse_mixture
from jaxformer.errors import UserError

# Anything that is meant as a share, right or wrong: digits, signs and a percent sign.
_SHARE = re.compile(r"\s*[-+.,e\d]*\d[-+.,e\d]*\s*%\s*", re.IGNORECASE)
_NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?\s*", re.IGNORECASE)


def parse_share(valid: str) -> float | None:
    """Returns the fraction of the training text that ``data.valid`` is; None if it is a name.

    >>> parse_share("5%"), parse_share("0.5 %"), parse_share("my/valid")
    (0.05, 0.005, None)

    Raises:
      UserError: It is a share, but not above 0% and below 100%.
    """
    if not _SHARE.fullmatch(valid):
        return None

    number = valid.strip().removesuffix("%")
    if not _NUMBER.fullmatch(number):
        raise _share_error(valid)

    share = float(number) / 100
    if not 0 < share < 1:
        raise _share_error(valid)
    return share


def is_share(valid: str) -> bool:
    """Returns whether this is meant as a share, right or wrong, and not as a name."""
    return bool(_SHARE.fullmatch(valid) or _NUMBER.fullmatch(valid))


def check_no_number(valid: str) -> None:
    """Refuses a number without a percent sign, which is probably meant as a share."""
    if _NUMBER.fullmatch(valid):
        raise _share_error(valid)


def hold_out(corpus: Corpus, train: str, valid: str) -> Corpus:
    """Returns a corpus whose split ``valid``, if it is a share such as "5%", is part of ``train``.

    The share is drawn by a hash of the source, so that all copies of a pair, and all translations
    of a sentence, are in the same split. A pair stays in its split when others are added.
    """
    share = parse_share(valid)
    if share is not None:
        return HeldOutCorpus(corpus, train, valid=valid, share=share)

    try:
        check_no_number(valid)
    except UserError:
        with contextlib.suppress(LookupError, OSError, UserError):
            corpus.fingerprint(valid)
            return corpus  # There is a split with this name.
        raise

    return corpus


def _share_error(valid: str) -> UserError:
    meant = "5%"
    if _NUMBER.fullmatch(valid):
        number = float(valid)
        if 0 < number < 1:
            meant = f"{100 * number:g}%"
        elif 1 <= number < 100:
            meant = f"{number:g}%"

    return UserError(
        "data.valid: expected a share of the training text, above 0% and below 100%, or the name "
        f"of a validation text: got {valid}; give --config.data.valid={meant}, for example"
    )


def open_splits(data: DataConfig, corpus: Corpus | None = None) -> VerifiedCorpus:
    """Returns a corpus, by default the config's, with its splits; treebanks must be given."""
    data.check_named()
    if corpus is None:
        corpus = open_corpus(data)

    with_valid = hold_out(corpus, data.train, data.valid)
    return VerifiedCorpus(with_valid)


def training_pairs(data: DataConfig) -> Iterator[tuple[str, str]]:
    """Yields the sentence pairs of the training split, each once, except of treebanks."""
    corpus = open_splits(data)
    return corpus.pairs(data.train)


class HeldOutCorpus:
    """A corpus from :func:`hold_out`; it has the optional methods of a corpus, too."""

    def __init__(
        self,
        corpus: Corpus,
        train: str,
        valid: str,
        share: float,
    ) -> None:
        self.target_symbols = corpus.target_symbols
        self._corpus = VerifiedCorpus(corpus)  # It has the optional methods.
        self._train = [*parse_mixture(train)] or [train]
        self._valid = valid
        self._share = share

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        found = False
        for _, _, pair in self._number_pairs(split):
            found = True
            yield pair

        whole = self._names(split) == self._train  # not one corpus of several
        if not found and whole:
            self._check_whole(split)

    def _check_whole(self, split: str) -> None:
        """Explains why a split is empty, unless the whole text is."""
        count = 0
        for name in self._train:
            count += sum(1 for _ in self._corpus.pairs(name))
        if not count:
            return

        if split == self._valid:
            what = "none"
            size = "larger"
        else:
            what = "all"
            size = "smaller"
        raise UserError(
            f"data.valid={self._valid}: by the hash of their sources, {what} of the {count:,} "
            f"training pairs are in this share; give a {size} one, more pairs, or a validation "
            "text of its own"
        )

    def fingerprint(self, split: str) -> str:
        """Returns a hash of the whole training text, the share, and which split this is."""
        whole = [self._corpus.fingerprint(name) for name in self._names(split)]
        is_valid = split == self._valid
        identity = repr((*whole, self._share, is_valid))
        return hashlib.sha256(identity.encode()).hexdigest()

    def place(self, split: str, number: int, side: int) -> str:
        numbered = self._number_pairs(split)
        from_number = itertools.islice(numbered, number, None)
        name, original, _ = next(from_number)
        return self._corpus.place(name, original, side)

    def notes(self, split: str) -> list[str]:
        if split != self._valid:
            return self._corpus.notes(split)

        return [f"validation pairs: {split} of the training text, by the hash of the source"]

    def origins(self, split: str) -> Iterator[str]:
        for name, _, _ in self._number_pairs(split):
            yield name

    def _names(self, split: str) -> list[str]:
        if split == self._valid:
            return self._train
        return [split]

    def _number_pairs(self, split: str) -> Iterator[tuple[str, int, tuple[str, str]]]:
        """Yields training split, number in it, and pair, for each pair of a split."""
        is_valid = split == self._valid
        for name in self._names(split):
            for number, pair in enumerate(self._corpus.pairs(name)):
                source, _ = pair
                if self._is_held_out(source) == is_valid:
                    yield name, number, pair

    def _is_held_out(self, source: str) -> bool:
        content = source.encode("utf-8", "surrogatepass")
        digest = hashlib.sha256(content).digest()
        number = int.from_bytes(digest[:8])  # uniform below 2**64
        return number < self._share * 2**64
