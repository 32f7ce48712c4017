"""Treebanks as corpora: the words are the source, the linearized tree is the target."""

import pathlib
from collections.abc import Iterator, Sequence

from jaxformer.data.file_corpora import FileCorpus
from jaxformer.data.text_files import read_file
from jaxformer.tasks.parsing.linearization import linearize
from jaxformer.tasks.parsing.trees import Tree, locate_trees, normalize


class TreesCorpus(FileCorpus):
    """Files in the Penn Treebank's bracket notation: words and tokens of trees, joined by spaces.

    Trees without words are skipped, and others normalized by :func:`normalize`.
    """

    target_symbols = True
    # Increase the number when the pairs made from the same files change.
    kind = "trees 1"

    def rows(self, path: pathlib.Path) -> Iterator[tuple[str, str]]:
        for _, tree in normalized_trees(path):
            words = tree.words()
            tokens = linearize(tree, tags=True)
            yield " ".join(words), " ".join(tokens)

    def lines(self, path: pathlib.Path) -> Sequence[object]:
        lines = []
        for place, _ in normalized_trees(path):
            lines.append(place.rpartition(":")[2])
        return lines


def normalized_trees(path: pathlib.Path) -> Iterator[tuple[str, Tree]]:
    """Yields place and tree of each tree with words in a file, decompressed by its name."""
    for place, tree in locate_trees(read_file(path), str(path)):
        normalized = normalize(tree)
        if normalized is not None:
            yield place, normalized
