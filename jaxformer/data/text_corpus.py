"""Sentence pairs from line-aligned text files."""

import hashlib
import pathlib
from collections.abc import Iterator

from jaxformer.data.text_files import combined, find_file, fingerprint_files, paired, read_file
from jaxformer.files import local_path


class TextCorpus:
    """Line-aligned text files.

    A split is a path prefix: ``data/train`` means ``data/train.en`` and ``data/train.de``. Each may
    be compressed (``.gz``, ``.bz2``, ``.xz``, ``.zst``). Line n of one file translates line n of
    the other.
    """

    target_symbols = False

    def __init__(self, source_language: str, target_language: str) -> None:
        """Takes the languages, which are the file extensions."""
        self._languages = (source_language, target_language)
        self._fingerprints: dict[str, str] = {}

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """Yields the line pairs of a split.

        Raises:
          UserError: A file is missing, damaged, not UTF-8 text, or has more lines than the other.
        """
        paths = self._paths(split)
        digests = [hashlib.sha256() for _ in paths]
        sides = [read_file(*file) for file in zip(paths, digests, strict=True)]
        hint = "; line n of one must translate line n of the other"
        yield from paired(sides[0], sides[1], str(paths[0]), str(paths[1]), hint)
        self._fingerprints[split] = combined(digests)

    def place(self, split: str, number: int, side: int) -> str:
        """Returns file and line of a side of a pair; see :class:`~jaxformer.Corpus`."""
        return f"{split}.{self._languages[side]}:{number + 1}"

    def fingerprint(self, split: str) -> str:
        """Returns the SHA-256 of the uncompressed bytes of both files, as they were last read.

        Raises:
          UserError: A file is missing or damaged.
        """
        if split not in self._fingerprints:
            self._fingerprints[split] = fingerprint_files(self._paths(split))
        return self._fingerprints[split]

    def _paths(self, split: str) -> list[pathlib.Path]:
        return [find_file(local_path(f"{split}.{language}")) for language in self._languages]
