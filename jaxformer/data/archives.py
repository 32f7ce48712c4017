"""Files inside zip and tar archives of others, read without writing anything to disk.

Nothing is extracted, so no name or link in an archive can lead out of a folder. Sizes are bounded
before anything is read, since a small archive can hold gigabytes of zeros.
"""

import gzip
import pathlib
import tarfile
import zipfile
from collections.abc import Callable
from typing import Any

from jaxformer.errors import UserError

# Largest file that is read from an archive, and largest total of an archive's unpacked files.
_MOST_BYTES = 64 << 20
_MOST_UNPACKED = 16 << 30
# Largest total of the headers of a file in a tar archive; they take 512 bytes each, or a few more.
_MOST_HEADERS = 1 << 20


def read_zip(path: pathlib.Path, wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """Returns the contents of the wanted files of a zip archive, by name.

    Args:
      path: The archive.
      wanted: Selects names in the archive.

    Raises:
      UserError: The archive is damaged, or a wanted file is encrypted or implausibly large.
    """
    found = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                if wanted(member.filename) and not member.is_dir():
                    _check_size(path, member.filename, member.file_size)
                    # zipfile reads no more than file_size, and compares the checksum.
                    found[member.filename] = archive.read(member)
    except UserError:
        raise
    except Exception as error:  # of many classes: what a damaged archive raises is not documented
        raise _damaged(path, "zip", error) from None
    return found


def read_tar(path: pathlib.Path, wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """Returns the contents of the wanted files of a tar archive that is compressed with gzip.

    Args:
      path: The archive.
      wanted: Selects names in the archive.

    Raises:
      UserError: The archive is damaged or implausibly large, or a wanted file is a link.
    """
    found = {}
    try:
        with gzip.open(path) as unpacked:
            stream = _Bounded(unpacked, path)
            with tarfile.open(fileobj=stream, mode="r|") as archive:  # type: ignore
                for member in archive:
                    stream.expect(member.size)
                    if wanted(member.name) and not member.isdir():
                        found[member.name] = _content(path, archive, member)
    except UserError:
        raise
    except Exception as error:
        raise _damaged(path, "tar.gz", error) from None
    return found


def _content(path: pathlib.Path, archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    content = archive.extractfile(member) if member.isreg() else None
    if content is None:
        raise UserError(f"{path}: expected {member.name} to be a file, not a link")
    _check_size(path, member.name, member.size)
    return content.read()


class _Bounded:
    """A stream that refuses to be read further than an archive, or its next header, may be long.

    A header can say that it has gigabytes, which tarfile would keep in memory.
    """

    def __init__(self, stream: Any, path: pathlib.Path) -> None:
        self._stream, self._path = stream, path
        self._left, self._in_this = _MOST_UNPACKED, _MOST_HEADERS

    def expect(self, size: int) -> None:
        """Allows to read a member of this size, and the headers of the next one."""
        self._in_this = size + _MOST_HEADERS

    def read(self, size: int) -> bytes:
        content = self._stream.read(size)
        self._left -= len(content)
        self._in_this -= len(content)
        if self._left < 0:
            raise UserError(
                f"{self._path}: expected at most {_MOST_UNPACKED:,} bytes in the archive, got more"
            )
        if self._in_this < 0:
            raise UserError(
                f"{self._path}: expected headers of at most {_MOST_HEADERS:,} bytes, got more"
            )
        return content


def _check_size(path: pathlib.Path, name: str, size: int) -> None:
    if size > _MOST_BYTES:
        raise UserError(
            f"{path}: expected {name} to have at most {_MOST_BYTES:,} bytes: got {size:,}"
        )


def _damaged(path: pathlib.Path, kind: str, error: Exception) -> UserError:
    return UserError(f"{path}: expected a whole {kind} archive: {error}")
