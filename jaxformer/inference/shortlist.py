"""Shortlists: a batch of sentences is translated with the words that are likely for it.

The logits then take a few thousand products instead of one for each word of the vocabulary. A
translation that needs another word gets a worse one.
"""

import dataclasses
import io
import pathlib
import zipfile
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from jaxformer.data.lexicon import NONE, TokenPairs, learn_lexicon
from jaxformer.data.tokenizer import PAD, UNK
from jaxformer.errors import UserError
from jaxformer.files import read_whole, write_file

NAME = "shortlist.npz"  # in a workdir
_SIZES = (256, 512, 1024, 2048, 4096, 8192)  # numbers of candidates, each with programs of its own


@dataclasses.dataclass(frozen=True, eq=False)
class Shortlist:
    """Likely target tokens of each source token, in the ids of a tokenizer.

    Attributes:
      common: Target tokens that are likely for every source.
      offsets: The targets of source token i are ``targets[offsets[i]:offsets[i + 1]]``.
      targets: Target tokens.
    """

    common: Int[np.ndarray, " C"]
    offsets: Int[np.ndarray, " _"]
    targets: Int[np.ndarray, " E"]

    @classmethod
    def learn(
        cls,
        pairs: TokenPairs,
        vocab_size: int,
        *,
        first: int = 100,
        best: int = 100,
    ) -> "Shortlist":
        """Learns a shortlist from translations in token ids.

        Args:
          pairs: Source and target of each pair, without special tokens.
          vocab_size: Number of token ids.
          first: Number of the most frequent target tokens, which are likely for every source.
          best: Number of the most probable targets of each source token, by IBM model 1.
        """
        sources, targets, probabilities = learn_lexicon(pairs, vocab_size)

        # The entries of a source token follow one another, the most probable target first.
        order = np.lexsort((-probabilities, sources))
        sources = sources[order]
        targets = targets[order]
        first_entry = np.searchsorted(sources, sources)
        rank = np.arange(len(sources)) - first_entry
        is_kept = (rank < best) & (sources != NONE)
        sources = sources[is_kept]
        targets = targets[is_kept]
        offsets = np.searchsorted(sources, np.arange(vocab_size + 1))

        frequency = np.zeros(vocab_size, np.int64)
        for _, target in pairs:
            ids = np.asarray(target, np.int64)
            np.add.at(frequency, ids, 1)
        most_frequent = np.argsort(-frequency, kind="stable")[:first]
        common = np.sort(most_frequent)
        common = common[frequency[common] > 0]

        return cls(
            common=common.astype(np.int32),
            offsets=offsets.astype(np.int32),
            targets=targets.astype(np.int32),
        )

    def candidates(
        self,
        sources: Sequence[Sequence[int]],
        vocab_size: int,
    ) -> Int[np.ndarray, " C"] | None:
        """Returns the target tokens for a batch of sources, the special tokens first.

        They are padded with PAD to one of a few sizes. None if they would be nearly all tokens.
        Source tokens are candidates, too, since names are often copied.
        """
        special = np.arange(UNK + 1)
        source_arrays = [np.asarray(ids, np.int32) for ids in sources]
        source_tokens = np.unique(np.concatenate(source_arrays))

        lists = [special, self.common, source_tokens]
        for token in source_tokens:
            start = self.offsets[token]
            stop = self.offsets[token + 1]
            lists.append(self.targets[start:stop])
        tokens = np.unique(np.concatenate(lists))

        sizes = [size for size in _SIZES if size >= len(tokens)]
        size = min(sizes, default=vocab_size)
        if size >= vocab_size:
            return None

        padded = np.full(size, PAD, np.int32)
        padded[: len(tokens)] = tokens
        return padded

    def save(self, folder: pathlib.Path) -> None:
        content = io.BytesIO()
        np.savez_compressed(content, **dataclasses.asdict(self))
        write_file(folder / NAME, content.getvalue())

    @classmethod
    def load(cls, folder: pathlib.Path, vocab_size: int) -> "Shortlist":
        """Reads the shortlist of a workdir; raises a ``UserError`` if there is no good one."""
        path = folder / NAME
        if not path.exists():
            raise UserError(f"{path}: no such file; jaxformer shortlist learns one")
        content = read_whole(path, folder)
        try:
            with np.load(io.BytesIO(content)) as file:
                shortlist = cls(
                    common=file["common"],
                    offsets=file["offsets"],
                    targets=file["targets"],
                )
            fits = shortlist._fits(vocab_size)
        except (OSError, LookupError, TypeError, ValueError, zipfile.BadZipFile) as error:
            raise UserError(f"{path}: expected a shortlist: {error!s:.200}") from None

        if not fits:
            raise UserError(f"{path}: expected a shortlist of {vocab_size} tokens")
        return shortlist

    def _fits(self, vocab_size: int) -> bool:
        """Returns whether the arrays, which come from a file, belong to so many tokens."""
        offsets = self.offsets
        tokens = np.concatenate([self.common, self.targets])
        is_in_range = (tokens >= 0) & (tokens < vocab_size)
        is_ordered = np.diff(offsets) >= 0

        has_all_sources = len(offsets) == vocab_size + 1
        has_all_targets = has_all_sources and offsets[-1] == len(self.targets)
        return bool(has_all_targets and is_ordered.all() and is_in_range.all())
