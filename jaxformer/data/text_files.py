"""Text files, compressed or not: lines, fingerprints, and suggestions for misspelled names."""

import bz2
import contextlib
import gzip
import hashlib
import io
import itertools
import lzma
import os
import pathlib
import re
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from jaxformer.data.catalog import download_hint
from jaxformer.errors import UserError, did_you_mean, needs_package
from jaxformer.files import STDIN, explain_read_errors

# A longer line is not a sentence, and tokenizing it takes a gigabyte for every ten megabytes.
_MAX_LINE_BYTES = 1_000_000
# File name endings of compressed text, and the formats.
COMPRESSED = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "Zstandard"}
# First bytes of files that are not UTF-8 text, and the program that converts them.
_FORMATS = {
    rb"\xff\xfe\0\0|\0\0\xfe\xff": ("UTF-32", "iconv -f UTF-32 -t UTF-8"),
    rb"\xff\xfe|\xfe\xff": ("UTF-16", "iconv -f UTF-16 -t UTF-8"),
    rb"\x1f\x8b": ("gzip", "gunzip, or name it .gz"),
    rb"BZh[1-9](1AY&SY|\x17rE8P)": ("bzip2", "bunzip2, or name it .bz2"),
    rb"\xfd7zXZ\0": ("xz", "unxz, or name it .xz"),
    rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18": ("Zstandard", "unzstd, or name it .zst"),
    rb"7z\xbc\xaf|Rar!\x1a|\x5d\0\0|\x1f\x9d": ("7z, RAR, lzma or Z", "7z x"),
    rb"PK(\x03\x04|\x05\x06)": ("zip, or a document such as DOCX", "unzip, or save it as text"),
    rb".{257}ustar": ("tar", "tar -xf"),
    rb"%PDF-": ("PDF", "pdftotext"),
    rb"\{\\rtf|\xd0\xcf\x11\xe0": ("a document", "its program: save it as text"),
    rb"PAR1\x15": ("Parquet", "a program that reads Parquet, or give data.corpus=parquet"),
}
_WIDE = ("UTF-32LE", "UTF-32BE", "UTF-16LE", "UTF-16BE")

T = TypeVar("T")


def decode_line(line: bytes, place: str) -> str:
    r"""Returns the text of a line, without its line end; ``place`` is for the error message.

    Only ``\n`` and ``\r\n`` end a line. ``str.splitlines`` would also break lines at U+0085 and
    other characters of news text, and the two sides of a corpus would no longer match.

    >>> decode_line(b"caf\xc3\xa9\r\n", "example:1")
    'café'
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


def zip_lines(
    first: Iterator[T],
    second: Iterator[T],
    first_name: str,
    second_name: str,
    hint: str = "",
) -> Iterator[tuple[T, T]]:
    """Zips the lines of two texts; the names and the hint are for the error message."""
    for number, (one, other) in enumerate(itertools.zip_longest(first, second)):
        if one is not None and other is not None:
            yield one, other
            continue

        # Counts the current line of the longer text and the remaining ones.
        remaining = sum(1 for _ in itertools.chain(first, second))
        longer = number + 1 + remaining
        first_count = number if one is None else longer
        second_count = longer if one is None else number
        raise UserError(
            f"expected as many lines in {first_name} as in {second_name}: got {first_count} and "
            f"{second_count}{hint}"
        )


def zip_files(
    first: pathlib.Path,
    second: pathlib.Path,
    hint: str = "",
) -> Iterator[tuple[str, str]]:
    """Zips the lines of two text files; the hint is for the error message."""
    return zip_lines(
        read_file(first),
        read_file(second),
        first_name=str(first),
        second_name=str(second),
        hint=hint,
    )


def read_file(path: pathlib.Path) -> Iterator[str]:
    """Yields the lines of a text file, without a byte-order mark at its beginning."""
    for number, line in enumerate(read_bytes(path), 1):
        if b"\0" in line:
            raise UserError(
                f"{path}:{number}: expected text, got a NUL byte at position "
                f"{line.index(0) + 1} of the line; remove the NUL"
            )

        if number == 1:
            line = line.removeprefix(BOM_UTF8)
        yield decode_line(line, f"{path}:{number}")


def check_format(head: bytes, name: str) -> None:
    """Raises a ``UserError`` if a text that begins with ``head`` is not UTF-8."""
    what, remedy = _identify_format(head)
    if what:
        raise UserError(f"{name}:1: expected UTF-8 text, got {what}; convert it with {remedy}")


def _identify_format(head: bytes) -> tuple[str, str]:
    """Returns the format of a file with a remedy; "" for UTF-8."""
    for start, (what, remedy) in _FORMATS.items():
        if re.match(start, head, re.DOTALL):
            return what, remedy
    return _other_encoding(head)


def _other_encoding(head: bytes) -> tuple[str, str]:
    """Returns the encoding of a text without byte-order mark, with a remedy; "" for UTF-8."""
    if b"\0" in head:
        texts = {encoding: head.decode(encoding, "replace") for encoding in _WIDE}
        # The right encoding gives the most ASCII characters, such as spaces.
        best = max(texts, key=lambda encoding: _count_ascii(texts[encoding]))
        text = texts[best]

        # In UTF-8 text with stray NULs, few of them are next to line ends.
        keeps_line_ends = 2 * text.count("\n") >= head.count(b"\n")
        if "\0" not in text and keeps_line_ends:
            return best, f"iconv -f {best} -t UTF-8"

    lines = [line for line in head.split(b"\n")[:-1] if line.strip()]
    if len(lines) > 2 and not any(map(_is_utf8, lines)):
        return "another encoding", "iconv -f ENCODING -t UTF-8, for example GB18030"

    return "", ""


def _count_ascii(text: str) -> int:
    return sum("\0" < character < "\x80" for character in text)


def _is_utf8(line: bytes) -> bool:
    return line.decode(errors="ignore").encode() == line


def fingerprint_files(paths: Iterable[pathlib.Path]) -> str:
    """Returns the SHA-256 of the uncompressed bytes of some files, hexadecimal."""
    whole = hashlib.sha256()
    for path in paths:
        with open_bytes(path) as stream:
            whole.update(hashlib.file_digest(stream, "sha256").digest())
    return whole.hexdigest()


def read_bytes(path: pathlib.Path) -> Iterator[bytes]:
    r"""Yields a file's lines as bytes, each with its ``\n``, in bounded memory, even of gzip."""
    with open_bytes(path) as stream:
        for number in itertools.count(1):
            line = stream.readline(_MAX_LINE_BYTES + 1)
            if len(line) > _MAX_LINE_BYTES:
                raise UserError(
                    f"{path}:{number}: expected one sentence per line, of at most "
                    f"{_MAX_LINE_BYTES:,} bytes, got a longer line; "
                    r"end each line with \n, or remove this line"
                )
            if not line:
                return
            yield line


@contextlib.contextmanager
def open_bytes(
    path: pathlib.Path,
    check: Callable[[bytes, str], None] | None = None,
) -> Iterator[io.BufferedIOBase]:
    """Opens a text file to read bytes, decompressed if its suffix is in ``COMPRESSED``.

    Args:
      path: The file.
      check: Refuses what is not text, given the first bytes and the name of the file; None refuses
        all but UTF-8.
    """
    check = check or check_format
    with explain_read_errors(path):
        try:
            with _open(path) as stream:
                check(stream.peek(1), str(path))
                yield stream

        except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
            is_from_system = getattr(error, "errno", None)
            if path.suffix not in COMPRESSED or is_from_system:
                raise

            name = COMPRESSED[path.suffix]
            raise UserError(
                f"{path}: expected a whole {name} file: {error}; copy it again, or compress it "
                f"with {name}"
            ) from None


def _open(path: pathlib.Path) -> Any:
    openers = {
        ".gz": gzip.open,
        ".bz2": bz2.open,
        ".xz": lzma.open,
    }
    if path.suffix in openers:
        return openers[path.suffix](path)

    if path == STDIN:
        # Opening its path fails for a socket, and starts a file anew that another has read from.
        return open(0, "rb", closefd=False)

    if path.suffix != ".zst":
        return path.open("rb")

    with needs_package("pyarrow", "which reads Zstandard"):
        import pyarrow

    compressed = pyarrow.OSFile(str(path))
    return io.BufferedReader(pyarrow.CompressedInputStream(compressed, "zstd"))


def find_file(path: pathlib.Path) -> pathlib.Path:
    """Returns the path of a regular file, or of the same file compressed."""
    for suffix in ("", *COMPRESSED):
        found = pathlib.Path(f"{path}{suffix}")
        with explain_read_errors(found):
            if found.is_file():
                return found
            _check_absent(found)

    raise _missing_error(path)


def _check_absent(path: pathlib.Path) -> None:
    """Refuses what has this name but is not a file."""
    if path.exists():
        special = "a pipe or a device, which can be read only once"
        what = "a folder" if path.is_dir() else special
        raise UserError(f"{path}: expected a file, this is {what}; name a file")

    if path.is_symlink():
        raise UserError(
            f"{path}: a link to {os.readlink(path)}, which does not exist; mount or "
            "bring back the file, or name another"
        )


def _missing_error(path: pathlib.Path) -> UserError:
    hint = download_hint(path)
    if "," in str(path):
        hint = "several corpora need weights, as in --config.data.train=a:1,b:1; data.valid is one"

    what = "no such file"
    if not path.parent.is_dir():
        what = f"no such file: there is no folder {path.parent}"
        hint = hint or "name another"
    elif not hint:
        what = f"no such file, nor one with {', '.join(COMPRESSED)}"
        hint = _ending_hint(path) or _similar_name(path)

    return UserError(f"{path}: {what}; {hint}")


def _ending_hint(path: pathlib.Path) -> str:
    """Returns a hint if this is the name of a file and the ending of a language, else ""."""
    given = path.with_suffix("")
    if path.suffix in COMPRESSED or not given.suffix or not given.is_file():
        return ""
    return (
        f"{given} is a file: leave out {given.suffix}, or name its format, such as "
        "--config.data.corpus=csv"
    )


def _similar_name(path: pathlib.Path) -> str:
    """Returns a hint about a similar name in the same folder."""
    with explain_read_errors(path.parent):
        names = sorted(entry.name for entry in path.parent.iterdir())
    prefix = f"{path.parent}/" if path.parent.parts else ""

    if path.suffix:
        packed = [name for name in names if name.startswith(f"{path.name}.")]
        if packed:
            return f"unpack or rename {prefix}{packed[0]}"

    return did_you_mean(path.name, names, "name another", prefix.__add__)
