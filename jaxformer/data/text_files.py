"""Text files, compressed or not: lines, fingerprints, and suggestions for misspelled names."""

import contextlib
import gzip
import hashlib
import itertools
import os
import pathlib
import stat
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO, TypeVar, cast

from jaxformer.data.catalog import how_to_get
from jaxformer.errors import UserError, did_you_mean
from jaxformer.files import readable

# A longer line is no sentence, and tokenizing it takes a gigabyte for every ten megabytes.
_LONGEST_LINE = 1_000_000
# First bytes of files that are not UTF-8 text, and the program that makes text of them.
_FORMATS = {
    b"\xff\xfe": ("UTF-16", "iconv -f UTF-16 -t UTF-8"),
    b"\xfe\xff": ("UTF-16", "iconv -f UTF-16 -t UTF-8"),
    b"\x1f\x8b": ("gzip", "gunzip, or name it .gz"),
    b"PK\x03\x04": ("zip", "unzip"),
    b"BZh91AY": ("bzip2", "bunzip2"),
    b"\xfd7zXZ": ("xz", "unxz"),
    b"\x28\xb5\x2f\xfd": ("Zstandard", "unzstd"),
    b"PAR1\x15": ("Parquet", "a program that reads Parquet"),
}

T = TypeVar("T")


def read_lines(stream: Iterable[bytes], name: str) -> Iterator[str]:
    r"""Yields the lines of an open binary file, without line ends.

    Only ``\n`` and ``\r\n`` end a line. ``str.splitlines`` would also break lines at U+0085 and
    others that occur in news text, and the two sides of a corpus would no longer match.

    Args:
      stream: A binary file, or any lines as bytes.
      name: Name of the file in error messages.

    Raises:
      UserError: A line is not UTF-8.

    >>> list(read_lines([b"caf\xc3\xa9\r\n", b"two"], "example"))
    ['café', 'two']
    """
    for number, line in enumerate(stream, 1):
        yield decode_line(line, f"{name}:{number}")


def decode_line(line: bytes, place: str) -> str:
    """Returns the text of a line, without its end.

    Args:
      line: The line as bytes.
      place: File and number of the line for error messages.

    Raises:
      UserError: The line is not UTF-8.
    """
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{place}: not UTF-8: byte 0x{line[error.start]:02x} at position "
            f"{error.start + 1} of the line; convert the file, for example with "
            "iconv -f WINDOWS-1252 -t UTF-8"
        ) from None
    return text.removesuffix("\n").removesuffix("\r")


def bounded_lines(readline: Callable[[int], bytes], name: str) -> Iterator[bytes]:
    r"""Yields the lines of a binary file, each with its ``\n``, in bounded memory.

    A megabyte of gzip can hold a line of a gigabyte.

    Args:
      readline: Method of the file.
      name: Name of the file in error messages.

    Raises:
      UserError: A line is longer than any sentence or tree.
    """
    for number in itertools.count(1):
        line = readline(_LONGEST_LINE + 1)
        if len(line) > _LONGEST_LINE:
            raise UserError(
                f"{name}:{number}: expected one sentence a line, of at most {_LONGEST_LINE:,} "
                r"bytes, got a longer line; end each line with \n, or remove this line"
            )
        if not line:
            return
        yield line


def paired(
    first: Iterator[T], second: Iterator[T], first_name: str, second_name: str, hint: str = ""
) -> Iterator[tuple[T, T]]:
    """Zips the lines of two texts.

    Args:
      first: Lines of a text.
      second: Lines of the other.
      first_name: Name of the first text in the error message.
      second_name: Name of the second text.
      hint: End of the error message.

    Raises:
      UserError: One text has more lines than the other.
    """
    for number, (one, other) in enumerate(itertools.zip_longest(first, second)):
        if one is None or other is None:
            # Counts the line that was just taken from the longer text, and the remaining ones.
            rest = number + 1 + sum(1 for _ in itertools.chain(first, second))
            counts = (number, rest) if one is None else (rest, number)
            raise UserError(
                f"expected as many lines in {first_name} as in {second_name}: got {counts[0]} and "
                f"{counts[1]}{hint}"
            )
        yield one, other


def read_file(path: pathlib.Path) -> Iterator[str]:
    """Yields the lines of a text file, decompressed if its name ends in ``.gz``.

    A byte-order mark at the beginning of the file is left out.

    Raises:
      UserError: The file cannot be read, is damaged, or is not UTF-8.
    """
    lines = (
        line.removeprefix(b"" if number else BOM_UTF8)
        for number, line in enumerate(read_bytes(path))
    )
    return read_lines(lines, str(path))


def read_corpus_file(path: pathlib.Path, digest: Any) -> Iterator[str]:
    """Yields the lines of a text file to train on, and hashes what it reads.

    A byte-order mark at the beginning of the file is left out.

    Args:
      path: File, decompressed if its name ends in ``.gz``.
      digest: Hash object of :mod:`hashlib`; receives the uncompressed bytes.

    Raises:
      UserError: The file cannot be read, is damaged, or is not UTF-8 text with one sentence a line.
    """
    lines = _hashed(read_bytes(path), digest)
    return read_lines(_checked(lines, path), str(path))


def byte_order_notes(paths: Iterable[pathlib.Path]) -> list[str]:
    """Returns a note for each file whose byte-order mark :func:`read_corpus_file` leaves out."""
    return [
        f"{path}:1: the byte-order mark at the beginning of the file is left out"
        for path in paths
        if next(read_bytes(path), b"").startswith(BOM_UTF8)
    ]


def _hashed(lines: Iterable[bytes], digest: Any) -> Iterator[bytes]:
    for line in lines:
        digest.update(line)
        yield line


def _checked(lines: Iterable[bytes], path: pathlib.Path) -> Iterator[bytes]:
    """Yields lines without a byte-order mark; refuses those that are not text."""
    for number, line in enumerate(lines, 1):
        if number == 1:
            check_format(line, path)
            line = line.removeprefix(BOM_UTF8)
        if b"\0" in line:
            raise UserError(
                f"{path}:{number}: expected text, got a NUL byte at position "
                f"{line.index(0) + 1} of the line; if the file is UTF-16, convert it with "
                "iconv -f UTF-16 -t UTF-8, or else remove the NUL"
            )
        yield line


def check_format(line: bytes, path: pathlib.Path) -> None:
    """Checks that a file, which begins with ``line``, is not in a format other than text.

    Raises:
      UserError: It is.
    """
    for start, (name, remedy) in _FORMATS.items():
        if line.startswith(start):
            raise UserError(f"{path}:1: expected UTF-8 text, got {name}; convert it with {remedy}")


def fingerprint_files(paths: Iterable[pathlib.Path]) -> str:
    """Returns the SHA-256 of the uncompressed bytes of some files, hexadecimal.

    Raises:
      UserError: A file cannot be read or is damaged.
    """
    digests = []
    for path in paths:
        digests.append(hashlib.sha256())
        for _ in _hashed(read_bytes(path), digests[-1]):
            pass
    return combined(digests)


def combined(digests: Sequence[Any]) -> str:
    """Returns the SHA-256 of several files from the hash objects of their bytes, hexadecimal."""
    return hashlib.sha256(b"".join(digest.digest() for digest in digests)).hexdigest()


def read_bytes(path: pathlib.Path) -> Iterator[bytes]:
    r"""Yields the lines of a file as bytes, each with its ``\n``; decompresses ``.gz`` files.

    Raises:
      UserError: The file cannot be read or is damaged, or a line is too long.
    """
    with open_bytes(path) as stream:
        yield from bounded_lines(stream.readline, str(path))


@contextlib.contextmanager
def open_bytes(path: pathlib.Path) -> Iterator[BinaryIO]:
    """Opens a file to read bytes, decompressed if its name ends in ``.gz``.

    Raises:
      UserError: The file cannot be opened, or cannot be read while it is open.
    """
    with readable(path):
        try:
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
                yield cast(BinaryIO, stream)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise UserError(
                f"{path}: expected a whole gzip file: {error}; copy it again, or compress it with "
                "gzip"
            ) from None


def regular_file(path: pathlib.Path) -> pathlib.Path | None:
    """Returns the path if there is a file, and None if nothing has this name.

    Raises:
      UserError: It is something else, such as a folder or a pipe, or cannot be looked up.
    """
    with readable(path):
        try:
            mode = path.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            if path.is_symlink():
                raise UserError(
                    f"{path}: a link to {os.readlink(path)}, which does not exist; mount or bring "
                    "back the file, or name another"
                ) from None
            return None
    if stat.S_ISREG(mode):
        return path
    what = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device, which can be read only once"
    raise UserError(f"{path}: expected a file, this is {what}; name a file")


def find_file(path: pathlib.Path) -> pathlib.Path:
    """Returns the path, or the path of the same file compressed with gzip.

    Raises:
      UserError: Neither exists, or it is not a file.
    """
    packed = path.with_name(path.name + ".gz")
    if found := regular_file(path) or regular_file(packed):
        return found
    what = "no such file" + ("" if path.parent.is_dir() else f": there is no folder {path.parent}")
    if hint := how_to_get(path):
        raise UserError(f"{path}: {what}; {hint}")
    if not path.parent.is_dir():
        raise UserError(f"{path}: {what}; name another")
    with readable(path.parent):
        names = sorted(entry.name for entry in path.parent.iterdir())
    prefix = f"{path.parent}/" if path.parent.parts else ""
    hint = did_you_mean(path.name, names, "name another", prefix)
    raise UserError(f"{path}: no such file, nor {packed.name}; {hint}")
