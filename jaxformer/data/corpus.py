"""Where sentence pairs come from: text files, TensorFlow Datasets, or generated numerals."""

import difflib
import hashlib
import itertools
import pathlib
from collections.abc import Iterator
from typing import Protocol

from jaxformer.config import DataConfig
from jaxformer.data.files import read_bytes, read_file
from jaxformer.data.numerals import NumeralsCorpus
from jaxformer.errors import UserError


class Corpus(Protocol):
    """Sentence pairs in named parts, such as training and validation."""

    def pairs(self, part: str) -> Iterator[tuple[str, str]]:
        """Source and target sentences of a part, in a fixed order, read as they are asked for."""
        ...

    def fingerprint(self, part: str) -> str:
        """A hash of the part's content, hexadecimal: the same content, the same fingerprint."""
        ...


def open_corpus(config: DataConfig) -> Corpus:
    """The corpus that the config names. Nothing is read before a part is asked for.

    Raises:
      UserError: The corpus has other languages.
    """
    languages = (config.source_language, config.target_language)
    if config.corpus == "text":
        return TextCorpus(*languages)
    if config.corpus == "numerals":
        return NumeralsCorpus(*languages)
    # Imported here: TensorFlow Datasets is slow to import, and few corpora need it.
    from jaxformer.data.tfds import TfdsCorpus

    return TfdsCorpus(config.builder, config.directory, *languages)


class TextCorpus:
    """Line-aligned text files.

    A part is a path prefix: ``data/train`` stands for ``data/train.en`` and ``data/train.de``, each
    of which may be packed with gzip (``.gz``). Line n of one translates line n of the other.
    """

    def __init__(self, source_language: str, target_language: str) -> None:
        """Takes the languages, which are the files' extensions."""
        self._languages = (source_language, target_language)
        self._fingerprints: dict[str, str] = {}

    def pairs(self, part: str) -> Iterator[tuple[str, str]]:
        """Line pairs of a part.

        Raises:
          UserError: A file is missing, damaged, not UTF-8, or has more lines than the other.
        """
        paths = self._paths(part)
        sides = [read_file(path) for path in paths]
        for number, (source, target) in enumerate(itertools.zip_longest(*sides), 1):
            if source is None or target is None:
                # zip_longest took this line from the longer side: count what is left there.
                longer = sides[0] if target is None else sides[1]
                ends = [number - 1, number + sum(1 for _ in longer)]
                counts = ends if source is None else ends[::-1]
                raise UserError(
                    f"expected as many lines in {paths[0]} as in {paths[1]}: got {counts[0]} and "
                    f"{counts[1]}; line n of one must translate line n of the other"
                )
            yield source, target

    def fingerprint(self, part: str) -> str:
        """SHA-256 of the unpacked bytes of both files; each part is read once for it.

        Raises:
          UserError: A file is missing or damaged.
        """
        if part not in self._fingerprints:
            both = hashlib.sha256()
            for path in self._paths(part):
                side = hashlib.sha256()
                for line in read_bytes(path):
                    side.update(line)
                both.update(side.digest())
            self._fingerprints[part] = both.hexdigest()
        return self._fingerprints[part]

    def _paths(self, part: str) -> list[pathlib.Path]:
        return [_find(pathlib.Path(f"{part}.{language}")) for language in self._languages]


def _find(path: pathlib.Path) -> pathlib.Path:
    """The file, or the same packed with gzip."""
    packed = path.with_name(path.name + ".gz")
    for candidate in (path, packed):
        if candidate.is_file():
            return candidate
    if not path.parent.is_dir():
        raise UserError(f"{path}: no such file: there is no folder {path.parent}; name another")
    names = sorted(entry.name for entry in path.parent.iterdir())
    close = difflib.get_close_matches(path.name, names, n=1)
    hint = f"did you mean {path.parent / close[0]}?" if close else "name another"
    raise UserError(f"{path}: no such file, nor {packed.name}; {hint}")
