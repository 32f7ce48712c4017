"""Treebanks as corpora: the words are the source, the linearized tree is the target."""

import hashlib
import pathlib
from collections.abc import Iterator

from jaxformer.data.text_files import find_file, fingerprint_files, read_file
from jaxformer.errors import UserError
from jaxformer.files import local_path
from jaxformer.tasks.parsing.linearization import linearize
from jaxformer.tasks.parsing.trees import normalize, place_trees

# Part of every fingerprint; increase it when the pairs made from the same files change.
_FORMAT = 1


class TreesCorpus:
    """Corpus of files in the Penn Treebank's bracket notation.

    A split is a path, or several separated by commas, optionally compressed.
    Trees are normalized by :func:`~jaxformer.tasks.parsing.trees.normalize`.
    """

    target_symbols = True

    def __init__(self) -> None:
        self._places: dict[str, list[str]] = {}

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """Yields the words and the tokens of every tree, joined by spaces.

        Trees without words are skipped.

        Raises:
          UserError: A file is missing, damaged, not UTF-8 text, or has a malformed tree.
        """
        places = []
        for path in _paths(split):
            for place, tree in place_trees(read_file(path), str(path)):
                if (normalized := normalize(tree)) is not None:
                    places.append(place)
                    words, tokens = normalized.words(), linearize(normalized, tags=True)
                    yield " ".join(words), " ".join(tokens)
        self._places[split] = places

    def place(self, split: str, number: int, side: int) -> str:
        """Returns file and line where a tree begins; see :class:`~jaxformer.Corpus`."""
        if split not in self._places:
            for _ in self.pairs(split):
                pass
        return self._places[split][number]

    def fingerprint(self, split: str) -> str:
        """Returns a hash of the files' uncompressed bytes.

        Raises:
          UserError: A file is missing or damaged.
        """
        content = fingerprint_files(_paths(split))
        return hashlib.sha256(f"trees {_FORMAT} {content}".encode()).hexdigest()


def _paths(split: str) -> list[pathlib.Path]:
    names = split.split(",")
    if not all(names):
        raise UserError(f"expected names of files of trees with commas between: got {split!r}")
    return [find_file(local_path(name)) for name in names]
