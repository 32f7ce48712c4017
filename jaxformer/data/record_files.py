"""Sentence pairs from Parquet and JSONL files, as on the Hugging Face Hub, and from TSV files."""

import collections
import contextlib
import glob
import hashlib
import json
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from jaxformer.checks import is_unicode
from jaxformer.data.text_files import (
    combined,
    find_file,
    open_bytes,
    read_bytes,
    read_file,
    regular_file,
)
from jaxformer.errors import UserError, needs_package
from jaxformer.files import local_path, readable

_ROWS_AT_A_TIME = 1000
_COLUMN = "translation"
_SERIES = re.compile(r"(.*)-(\d{5})-of-(\d{5}).*")


class RecordCorpus:
    """Files with one sentence pair a row: Parquet, JSON objects on lines of their own, or TSV.

    A row has a text for each language, ``{"en": "Yes.", "de": "Ja."}``, either as its columns or in
    a column ``translation``. A line of TSV has the source, a tab and the target. A split is a file
    or a pattern such as ``wmt14/train-*.parquet``, or several with commas between. Files are read
    in the order of their names.
    """

    target_symbols = False

    def __init__(
        self,
        file_format: Literal["parquet", "jsonl", "tsv"],
        source_language: str,
        target_language: str,
    ) -> None:
        """Takes the format of all files, and the languages, which are names of columns."""
        self._languages = (source_language, target_language)
        self._open, self._rows, self._count = _FORMATS[file_format]
        # Fingerprints of Parquet and JSONL, which no file can both be, stay as in 0.2.0.
        self._kind = ("tsv",) if file_format == "tsv" else ()
        self._counts: dict[pathlib.Path, int] = {}

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """Yields the pairs of a split.

        Raises:
          UserError: A file is missing or damaged, or a row has no text for a language.
        """
        for path in _paths(split):
            for number, row in enumerate(self._rows(path, self._languages), 1):
                yield self._pair(row, f"{path}:{number}")

    def place(self, split: str, number: int, side: int) -> str:
        """Returns file and row of a pair; see :class:`~jaxformer.Corpus`."""
        for path in _paths(split):
            if path not in self._counts:
                self._counts[path] = self._count(path)
            if number < self._counts[path]:
                return f"{path}:{number + 1}"
            number -= self._counts[path]
        raise LookupError(number)

    def fingerprint(self, split: str) -> str:
        """Returns a hash of the languages and of the bytes of all files.

        Raises:
          UserError: A file is missing, cannot be read, or is in another format.
        """
        digests = []
        for path in _paths(split):
            # Checks the format, since the cache may have the tokens of the same file from a run
            # with the right format.
            with self._open(path), readable(path), path.open("rb") as stream:
                digests.append(hashlib.file_digest(stream, "sha256"))
        identity = (*self._languages, combined(digests), *self._kind)
        return hashlib.sha256(repr(identity).encode()).hexdigest()

    def _pair(self, row: Any, place: str) -> tuple[str, str]:
        texts = row
        if isinstance(row, dict) and not isinstance(row.get(_COLUMN, ""), str):
            texts = row[_COLUMN]
        texts = texts if isinstance(texts, dict) else {}
        pair: Any = row if isinstance(row, tuple) else [texts.get(name) for name in self._languages]
        for language, text in zip(self._languages, pair, strict=True):
            if not isinstance(text, str):
                raise UserError(
                    f"{place}: expected a text for {language!r}, as in {self._example()}: got "
                    f"{row!r:.100}"
                )
            if "\0" in text or not is_unicode(text):
                raise UserError(
                    f"{place}: expected text, got a NUL or half of a surrogate pair in "
                    f"{language!r}; remove it"
                )
        return pair[0], pair[1]

    def _example(self) -> str:
        return json.dumps({_COLUMN: dict.fromkeys(self._languages, "...")})


def _paths(split: str) -> list[pathlib.Path]:
    """Returns the files of a split.

    Raises:
      UserError: A name or pattern has no files, or not all of a numbered series.
    """
    return [path for pattern in split.split(",") for path in _matches(local_path(pattern))]


def _matches(pattern: pathlib.Path) -> list[pathlib.Path]:
    if pattern.exists():
        names = [str(pattern)]
    elif names := sorted(glob.glob(_below_existing_folder(pattern))):
        _check_series(pattern, names)
    else:
        names = [str(find_file(pattern))]
    return [path for path in map(pathlib.Path, names) if regular_file(path)]


def _below_existing_folder(pattern: pathlib.Path) -> str:
    """Returns a pattern for ``glob``; the name of a folder that exists is not taken for one."""
    folder = str(pattern.parent)
    return os.path.join(glob.escape(folder) if pattern.parent.is_dir() else folder, pattern.name)


def _check_series(pattern: pathlib.Path, names: list[str]) -> None:
    """Checks that names such as a-00000-of-00002.parquet are all of their series, each once."""
    series = collections.defaultdict(list)
    for name in names:
        if match := _SERIES.fullmatch(name):
            series[match[1], match[3]].append(int(match[2]))
    for (start, size), numbers in series.items():
        first = min(1, *numbers)  # some count from 0, some from 1
        if sorted(numbers) != list(range(first, first + int(size))):
            raise UserError(
                f"{pattern}: expected all {int(size)} files of the series {start}-*-of-{size}, "
                f"each once: found {len(set(numbers))} of them in {len(numbers)} files; get the "
                "others, and move copies away"
            )


def _json_rows(path: pathlib.Path, languages: tuple[str, str]) -> Iterator[Any]:
    for number, line in enumerate(read_bytes(path), 1):
        try:
            yield json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"{path}:{number}: expected a JSON object in UTF-8 on each line: {error}"
            ) from None


def _tsv_rows(path: pathlib.Path, languages: tuple[str, str]) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(read_file(path), 1):
        source, *others = line.split("\t")
        if len(others) != 1:
            raise UserError(
                f"{path}:{number}: expected a source, one tab and a target, got {len(others)} "
                "tabs; select two columns, for example with cut -f 1,2"
            )
        yield source, others[0]


def _line_count(path: pathlib.Path) -> int:
    return sum(1 for _ in read_bytes(path))


def _parquet_rows(path: pathlib.Path, languages: tuple[str, str]) -> Iterator[Any]:
    with _open_parquet(path) as file:
        names = file.schema_arrow.names
        flat = set(languages) <= set(names) or _COLUMN not in names
        columns = list(languages) if flat else [_COLUMN]
        if not set(columns) <= set(names):
            raise UserError(
                f"{path}: expected a column {_COLUMN!r}, or columns "
                f"{' and '.join(map(repr, languages))}: got {', '.join(map(repr, names))}"
            )
        number = 1
        try:
            for batch in file.iter_batches(_ROWS_AT_A_TIME, columns=columns):
                for row in _dictionaries(batch):
                    yield row
                    number += 1
        except UnicodeDecodeError as error:
            raise UserError(f"{path}:{number}: not UTF-8: {error.reason}") from None


def _dictionaries(batch: Any) -> Iterable[Any]:
    """Returns the rows of a batch; one that is not UTF-8 raises only when it is reached."""
    try:
        return batch.to_pylist()
    except UnicodeDecodeError:
        return (batch.slice(row, 1).to_pylist()[0] for row in range(batch.num_rows))


def _parquet_count(path: pathlib.Path) -> int:
    with _open_parquet(path) as file:
        return file.metadata.num_rows


@contextlib.contextmanager
def _open_parquet(path: pathlib.Path) -> Iterator[Any]:
    """Opens a Parquet file.

    Raises:
      UserError: The package pyarrow is missing, or the file cannot be read while it is open.
    """
    with needs_package("pyarrow", "which reads Parquet"):
        import pyarrow.parquet
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield file
    except (pyarrow.ArrowException, OSError) as error:
        what = str(error).splitlines()[0]
        raise UserError(
            f"{path}: expected a whole Parquet file: {what}; get it again, or name its format in "
            "data.corpus"
        ) from None


_Open = Callable[[pathlib.Path], contextlib.AbstractContextManager[Any]]
_Rows = Callable[[pathlib.Path, tuple[str, str]], Iterator[Any]]
_FORMATS: dict[str, tuple[_Open, _Rows, Callable[[pathlib.Path], int]]] = {
    "parquet": (_open_parquet, _parquet_rows, _parquet_count),
    "jsonl": (open_bytes, _json_rows, _line_count),
    "tsv": (open_bytes, _tsv_rows, _line_count),
}
