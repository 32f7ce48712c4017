"""Treebanks as sentence pairs: the words are the source, the linearised tree is the target."""

import hashlib
import pathlib
from collections.abc import Iterator

from jaxformer.data.linearisation import linearise
from jaxformer.data.text_files import find_file, fingerprint_files
from jaxformer.data.trees import normalise, read_tree_file
from jaxformer.errors import UserError

# Part of every fingerprint: to be raised when other pairs are made of the same files.
_FORMAT = 1


class TreesCorpus:
    """Files of trees in the Penn Treebank's brackets.

    A part is a path, or several with commas between them; each may be packed with gzip (``.gz``).
    Trees are taken as :func:`~jaxformer.data.trees.normalise` leaves them.
    """

    target_symbols = True

    def __init__(self) -> None:
        """Nothing is read before a part is asked for."""
        self._fingerprints: dict[str, str] = {}

    def pairs(self, part: str) -> Iterator[tuple[str, str]]:
        """The words of every tree and its tokens, with spaces between; none of a tree of no words.

        Raises:
          UserError: A file is missing, damaged, not UTF-8, or has a malformed tree.
        """
        for path in _paths(part):
            for tree in map(normalise, read_tree_file(path)):
                if tree is not None:
                    yield " ".join(tree.words()), " ".join(linearise(tree, tags=True))

    def fingerprint(self, part: str) -> str:
        """SHA-256 of the files' unpacked bytes; each part is read once for it.

        Raises:
          UserError: A file is missing or damaged.
        """
        if part not in self._fingerprints:
            content = fingerprint_files(_paths(part))
            self._fingerprints[part] = hashlib.sha256(
                f"trees {_FORMAT} {content}".encode()
            ).hexdigest()
        return self._fingerprints[part]


def _paths(part: str) -> list[pathlib.Path]:
    names = part.split(",")
    if not all(names):
        raise UserError(f"expected names of files of trees with commas between: got {part!r}")
    return [find_file(pathlib.Path(name)) for name in names]
