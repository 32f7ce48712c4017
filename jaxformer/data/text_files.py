"""Text files, compressed or not: lines, fingerprints, and suggestions for misspelled names."""

import difflib
import gzip
import hashlib
import os
import pathlib
import zlib
from collections.abc import Iterable, Iterator

from jaxformer.errors import UserError


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
    """Yields the lines of a text file, decompressed if its name ends in ``.gz``.

    Raises:
      UserError: The file cannot be read, is damaged, or is not UTF-8.
    """
    return read_lines(_read_bytes(path), str(path))


def fingerprint_files(paths: Iterable[pathlib.Path]) -> str:
    """Returns the SHA-256 of the uncompressed bytes of some files, hexadecimal.

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
    r"""Yields the lines of a file as bytes, each with its ``\n``; decompresses ``.gz`` files.

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
    """Returns the path, or the path of the same file compressed with gzip.

    Raises:
      UserError: Neither exists.
    """
    packed = path.with_name(path.name + ".gz")
    for candidate in (path, packed):
        if candidate.is_file():
            return candidate
    if not path.parent.is_dir():
        raise UserError(
            f"{path}: no such file: there is no folder {path.parent}; {_where_to_find(path)}"
        )
    names = sorted(entry.name for entry in path.parent.iterdir())
    close = difflib.get_close_matches(path.name, names, n=1)
    hint = f"did you mean {path.parent / close[0]}?" if close else "name another"
    raise UserError(f"{path}: no such file, nor {packed.name}; {hint}")


def _where_to_find(path: pathlib.Path) -> str:
    """Returns what to do about a missing folder; the shipped configs read $JAXFORMER_DATA."""
    data = pathlib.Path(os.environ.get("JAXFORMER_DATA", "../shared/data"))
    if not path.is_relative_to(data):
        return "name another"
    return (
        f"set JAXFORMER_DATA to the folder that holds {path.relative_to(data).parts[0]}/, or name "
        "other files with --config.data.train=PREFIX"
    )
