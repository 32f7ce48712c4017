"""Sentence pairs from files: line-aligned text, or one pair per row in Parquet, JSONL or TSV."""

import abc
import collections
import contextlib
import csv
import glob
import hashlib
import json
import os
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

from jaxformer.checks import is_unicode
from jaxformer.data import text_files
from jaxformer.errors import UserError, needs_package
from jaxformer.files import explain_read_errors, file_sha256, local_path

_COLUMN = "translation"  # the column with the texts of all languages
# A file of a series, such as train-00000-of-00002.parquet: its start, number and size.
_SERIES = re.compile(r"(.*)-(\d{5})-of-(\d{5}).*")


class TextCorpus:
    """Line-aligned text files.

    A split is a path prefix: ``data/train`` means ``data/train.en`` and ``data/train.de``, whose
    lines translate each other. Each may be compressed (``.gz``, ``.bz2``, ``.xz``, ``.zst``).
    """

    target_symbols = False

    def __init__(self, source_language: str, target_language: str) -> None:
        self._languages = (source_language, target_language)

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        source, target = self._paths(split)
        hint = "; line n of one must translate line n of the other"
        yield from text_files.zip_files(source, target, hint)

    def place(self, split: str, number: int, side: int) -> str:
        return f"{split}.{self._languages[side]}:{number + 1}"

    def fingerprint(self, split: str) -> str:
        """Returns the SHA-256 of the uncompressed bytes of both files."""
        return text_files.fingerprint_files(self._paths(split))

    def _paths(self, split: str) -> list[pathlib.Path]:
        paths = []
        for language in self._languages:
            path = local_path(f"{split}.{language}")
            paths.append(text_files.find_file(path))
        return paths


class FileCorpus(abc.ABC):
    """Files with one pair per row.

    A split is a file or a pattern such as ``wmt14/train-*.parquet``, or several, separated by
    commas. Files are read in the order of their names.
    """

    target_symbols = False
    kind = ""  # distinguishes the fingerprints of files read in different ways

    def __init__(self) -> None:
        self._lines: dict[pathlib.Path, Sequence[object]] = {}

    @abc.abstractmethod
    def rows(self, path: pathlib.Path) -> Iterator[tuple[str, str]]:
        """Yields the pairs of a file."""

    def lines(self, path: pathlib.Path) -> Sequence[object]:
        """Returns the line number of each row of a file, or another name of its place."""
        count = sum(1 for _ in text_files.read_bytes(path))
        return range(1, 1 + count)

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        for path in find_files(split):
            yield from self.rows(path)

    def place(self, split: str, number: int, side: int) -> str:
        for path in find_files(split):
            if path not in self._lines:
                self._lines[path] = self.lines(path)
            lines = self._lines[path]

            if number < len(lines):
                line = lines[number]
                return f"{path}:{line}"
            number -= len(lines)

        raise LookupError(number)

    def fingerprint(self, split: str) -> str:
        """Returns a hash of the kind, and of the files' uncompressed bytes."""
        content = text_files.fingerprint_files(find_files(split))
        identity = f"{self.kind} {content}"
        return hashlib.sha256(identity.encode()).hexdigest()


class RecordCorpus(FileCorpus):
    """Files whose rows have a text for the source and one for the target.

    A row of Parquet or JSONL has columns named by the languages, ``{"en": "Yes.", "de": "Ja."}``,
    or the same in a column ``translation``.

    Attributes:
      columns: Names of the two columns.
    """

    def __init__(self, source_column: str, target_column: str) -> None:
        super().__init__()
        self.columns = (source_column, target_column)

    def open(self, path: pathlib.Path) -> contextlib.AbstractContextManager[Any]:
        """Opens a file and checks its format."""
        return text_files.open_bytes(path)

    def fingerprint(self, split: str) -> str:
        """Returns a hash of the columns and of the bytes of all files."""
        content = hashlib.sha256()
        for path in find_files(split):
            # Opening a file checks its format. The pairs may never be read: the cache may have the
            # tokens of a run with the right format, whose fingerprint is the same.
            with self.open(path), explain_read_errors(path):
                digest = file_sha256(path)
                content.update(bytes.fromhex(digest))

        # As in 0.2.0, Parquet and JSONL have the same fingerprints: no file can be both.
        identity = (*self.columns, content.hexdigest())
        if self.kind:
            identity += (self.kind,)

        text = repr(identity)
        return hashlib.sha256(text.encode()).hexdigest()

    def pair(self, row: Any, place: str) -> tuple[str, str]:
        """Returns the texts of a row; ``place`` names the row in error messages."""
        texts = row
        if isinstance(row, dict):
            # A text in this column is of a language that is called so.
            column = row.get(_COLUMN, "")
            if not isinstance(column, str):
                texts = column

        pair = []
        for column in self.columns:
            text = None
            if isinstance(texts, dict):
                text = texts.get(column)
            if not isinstance(text, str):
                example = {_COLUMN: dict.fromkeys(self.columns, "...")}
                raise UserError(
                    f"{place}: expected a text for {column!r}, as in {json.dumps(example)}: "
                    f"got {row!r:.100}"
                )

            if "\0" in text or not is_unicode(text):
                raise UserError(
                    f"{place}: expected text, got a NUL or half of a surrogate pair in "
                    f"{column!r}; remove it"
                )

            pair.append(text)

        source, target = pair
        return source, target


class JsonlCorpus(RecordCorpus):
    """Files of JSON objects, one per line."""

    def rows(self, path: pathlib.Path) -> Iterator[tuple[str, str]]:
        for number, line in enumerate(text_files.read_bytes(path), start=1):
            try:  # A context manager would be slow for millions of lines.
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UserError(
                    f"{path}:{number}: expected a JSON object in UTF-8 on each line: {error}"
                ) from None
            yield self.pair(row, f"{path}:{number}")


class TsvCorpus(RecordCorpus):
    """Files of lines with a source, a tab and a target."""

    kind = "tsv"

    def rows(self, path: pathlib.Path) -> Iterator[tuple[str, str]]:
        for number, line in enumerate(text_files.read_file(path), start=1):
            source, *others = line.split("\t")
            if len(others) != 1:
                raise UserError(
                    f"{path}:{number}: expected a source, one tab and a target, got {len(others)} "
                    "tabs; select two columns, for example with cut -f 1,2"
                )

            [target] = others
            yield source, target


class CsvCorpus(RecordCorpus):
    """Files of comma-separated values, with the names of the columns in the first row.

    Commas, semicolons or tabs separate values. A value within quotation marks may have line breaks.
    """

    kind = "csv"

    def lines(self, path: pathlib.Path) -> Sequence[object]:
        return [number for number, _ in self._rows(path)]

    def rows(self, path: pathlib.Path) -> Iterator[tuple[str, str]]:
        for number, row in self._rows(path):
            yield self.pair(row, f"{path}:{number}")

    def _rows(self, path: pathlib.Path) -> Iterator[tuple[int, dict[str, str]]]:
        """Yields the number of the last line of each row, and its values by column."""
        lines = text_files.read_file(path)
        header = next(lines, "")
        separator = self._separator(path, header)
        names = next(csv.reader([header], delimiter=separator))

        reader = csv.reader((f"{line}\n" for line in lines), delimiter=separator, strict=True)
        try:
            for values in reader:
                number = 1 + reader.line_num
                if len(values) != len(names):
                    raise UserError(
                        f"{path}:{number}: expected {len(names)} values, as in the first row: got "
                        f"{len(values)}; put a value with {separator!r} in it between quotation "
                        "marks"
                    )
                yield number, dict(zip(names, values, strict=True))
        except csv.Error as error:
            raise UserError(
                f"{path}:{1 + reader.line_num}: expected comma-separated values: {error}; put a "
                'value with a quotation mark in it between others, as in "a ""b"" c"'
            ) from None

    def _separator(self, path: pathlib.Path, header: str) -> str:
        """Returns the character that separates the names of the columns, which are in a file."""
        for separator in ",;\t":
            names = next(csv.reader([header], delimiter=separator), [])
            if all(names.count(column) == 1 for column in self.columns):
                return separator

        raise UserError(
            f"{path}:1: expected a row of names, with {' and '.join(self.columns)} among them: got "
            f"{header!r:.200}; give --config.data.columns=SOURCE,TARGET, with the names in the file"
        )


class ParquetCorpus(RecordCorpus):
    @contextlib.contextmanager
    def open(self, path: pathlib.Path) -> Iterator[Any]:
        with needs_package("pyarrow", "which reads Parquet"):
            import pyarrow.parquet

        try:
            with pyarrow.parquet.ParquetFile(path) as file:
                yield file
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(
                f"{path}: expected a whole Parquet file: {reason}; get it again, or name its "
                "format in data.corpus"
            ) from None

    def lines(self, path: pathlib.Path) -> Sequence[object]:
        with self.open(path) as file:
            return range(1, 1 + file.metadata.num_rows)

    def rows(self, path: pathlib.Path) -> Iterator[tuple[str, str]]:
        with self.open(path) as file:
            columns = self._columns(path, file.schema_arrow.names)

            number = 0
            for batch in file.iter_batches(1000, columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    yield self.pair(row, f"{path}:{number}")

    def _columns(self, path: pathlib.Path, names: list[str]) -> list[str]:
        """Returns the columns to read from a file with columns of these names."""
        if set(self.columns) <= set(names):
            return list(self.columns)
        if _COLUMN in names:
            return [_COLUMN]

        wanted = " and ".join(map(repr, self.columns))
        given = ", ".join(map(repr, names))
        raise UserError(f"{path}: expected a column {_COLUMN!r}, or columns {wanted}: got {given}")


def find_files(split: str) -> list[pathlib.Path]:
    """Returns the files of a split, which names files or patterns; refuses missing ones."""
    paths = []
    for pattern in split.split(","):
        paths += _matches(local_path(pattern))
    return paths


def _matches(pattern: pathlib.Path) -> list[pathlib.Path]:
    if pattern.exists():
        return [text_files.find_file(pattern)]

    # The name of an existing folder is not a pattern.
    folder = str(pattern.parent)
    if pattern.parent.is_dir():
        folder = glob.escape(folder)

    names = sorted(glob.glob(os.path.join(folder, pattern.name)))
    if not names:
        # The file may exist only compressed; otherwise this raises an error.
        return [text_files.find_file(pattern)]

    _check_series(pattern, names)
    return [text_files.find_file(pathlib.Path(name)) for name in names]


def _check_series(pattern: pathlib.Path, names: list[str]) -> None:
    """Checks that names such as a-00000-of-00002.parquet form a complete series."""
    series = collections.defaultdict(list)
    for name in names:
        match = _SERIES.fullmatch(name)
        if match:
            start, number, size = match.groups()
            series[start, size].append(int(number))

    for (start, size), numbers in series.items():
        count = int(size)
        first = min(1, *numbers)  # some count from 0, some from 1
        complete = list(range(first, first + count))
        if sorted(numbers) != complete:
            num_found = len(set(numbers))
            raise UserError(
                f"{pattern}: expected all {count} files of the series {start}-*-of-{size}, "
                f"each once: found {num_found} of them in {len(numbers)} files; get the "
                "others, and move copies away"
            )
