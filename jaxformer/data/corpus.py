"""Where sentence pairs come from: text files, TensorFlow Datasets, treebanks, or numerals."""

import difflib
import gzip
import hashlib
import itertools
import pathlib
import zlib
from collections.abc import Iterable, Iterator
from typing import Protocol, runtime_checkable

from jaxformer.config import DataConfig
from jaxformer.data.numerals import NumeralsCorpus
from jaxformer.errors import UserError


@runtime_checkable
class Corpus(Protocol):
    """Sentence pairs in named parts, such as training and validation.

    Attributes:
      target_symbols: Whether a target is not text, but symbols with spaces between them, such as
        the brackets of a tree.
    """

    target_symbols: bool

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
    if config.corpus == "trees":
        # Imported here: trees are read with this module's functions.
        from jaxformer.data.treebank import TreesCorpus

        return TreesCorpus()
    # Imported here: TensorFlow Datasets is slow to import, and few corpora need it.
    from jaxformer.data.tfds import TfdsCorpus

    return TfdsCorpus(config.builder, config.directory, *languages)


class TextCorpus:
    """Line-aligned text files.

    A part is a path prefix: ``data/train`` stands for ``data/train.en`` and ``data/train.de``, each
    of which may be packed with gzip (``.gz``). Line n of one translates line n of the other.
    """

    target_symbols = False

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
            self._fingerprints[part] = fingerprint_files(self._paths(part))
        return self._fingerprints[part]

    def _paths(self, part: str) -> list[pathlib.Path]:
        return [find_file(pathlib.Path(f"{part}.{language}")) for language in self._languages]


def read_lines(stream: Iterable[bytes], name: str) -> Iterator[str]:
    r"""The lines of an opened binary file, without their ends.

    Only ``\n`` and ``\r\n`` end a line: ``str.splitlines`` would break lines at U+0085 and others
    that occur in news text, and the two sides of a corpus would no longer match.

    Args:
      stream: A binary file, or any lines as bytes.
      name: What to call it in messages.

    Raises:
      UserError: A line is not UTF-8.

    >>> list(read_lines([b"caf\xc3\xa9\r\n", b"two"], "example"))
    ['café', 'two']
    """
    for number, line in enumerate(stream, 1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{name}:{number}: not UTF-8: byte 0x{line[error.start]:02x} at position "
                f"{error.start + 1} of the line; convert the file, for example with "
                "iconv -f ISO-8859-1 -t UTF-8"
            ) from None
        yield text.removesuffix("\n").removesuffix("\r")


def read_file(path: pathlib.Path) -> Iterator[str]:
    """The lines of a text file, unpacked if its name ends in ``.gz``.

    Raises:
      UserError: The file cannot be read, is damaged, or is not UTF-8.
    """
    return read_lines(_read_bytes(path), str(path))


def fingerprint_files(paths: Iterable[pathlib.Path]) -> str:
    """SHA-256 of some files' unpacked bytes, hexadecimal.

    Raises:
      UserError: A file cannot be read or is damaged.
    """
    all_files = hashlib.sha256()
    for path in paths:
        one = hashlib.sha256()
        for line in _read_bytes(path):
            one.update(line)
        all_files.update(one.digest())
    return all_files.hexdigest()


def _read_bytes(path: pathlib.Path) -> Iterator[bytes]:
    r"""The lines of a file as bytes, each with its ``\n``, unpacked if its name ends in ``.gz``.

    Raises:
      UserError: The file cannot be read or is damaged.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            yield from stream
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: expected a whole gzip file: {error}; copy it again") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def find_file(path: pathlib.Path) -> pathlib.Path:
    """The file, or the same packed with gzip.

    Raises:
      UserError: There is neither.
    """
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
