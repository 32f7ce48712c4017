"""Treebanks as corpora: the words are the source, the linearized tree is the target."""

import hashlib
import pathlib
from collections.abc import Iterator

from jaxformer.data.text_files import find_file, fingerprint_files
from jaxformer.errors import UserError
from jaxformer.tasks.parsing.linearization import linearize
from jaxformer.tasks.parsing.trees import normalize, read_tree_file

# Part of every fingerprint; increase it when the pairs made from the same files change.
_FORMAT = 1


class TreesCorpus:
    """Corpus of files in the Penn Treebank's bracket notation.

    A split is a path, or several separated by commas, optionally compressed with gzip (``.gz``).
    Trees are normalized by :func:`~jaxformer.tasks.parsing.trees.normalize`.
    """

    target_symbols = True

    def __init__(self) -> None:
        self._fingerprints: dict[str, str] = {}

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """Yields the words and the tokens of every tree, joined by spaces.

        Trees without words are skipped.

        Raises:
          UserError: A file is missing, damaged, not UTF-8, or has a malformed tree.
        """
        for path in _paths(split):
            for tree in map(normalize, read_tree_file(path)):
                if tree is not None:
                    yield " ".join(tree.words()), " ".join(linearize(tree, tags=True))

    def fingerprint(self, split: str) -> str:
        """Returns the SHA-256 of the files' uncompressed bytes; reads each split once.

        Raises:
          UserError: A file is missing or damaged.
        """
        if split not in self._fingerprints:
            content = fingerprint_files(_paths(split))
            self._fingerprints[split] = hashlib.sha256(
                f"trees {_FORMAT} {content}".encode()
            ).hexdigest()
        return self._fingerprints[split]


def _paths(split: str) -> list[pathlib.Path]:
    names = split.split(",")
    if not all(names):
        raise UserError(f"expected names of files of trees with commas between: got {split!r}")
    return [find_file(pathlib.Path(name)) for name in names]
