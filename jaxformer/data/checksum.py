"""Hashes of files, to check downloads."""

import dataclasses
import gzip
import hashlib
import pathlib
import zlib
from typing import Literal

from jaxformer.errors import UserError


@dataclasses.dataclass(frozen=True)
class Checksum:
    """The hash of a file.

    Attributes:
      digest: The hash, hexadecimal.
      algorithm: Name of the hash function.
      unpacked: True if the hash is of the content of a gzip file, not of the file.
    """

    digest: str
    algorithm: Literal["sha256", "md5"] = "sha256"
    unpacked: bool = False

    def check(self, path: pathlib.Path) -> None:
        """Checks a file.

        Raises:
          UserError: The file has another hash, or is no gzip file although it should be one.
        """
        try:
            with gzip.open(path) if self.unpacked else path.open("rb") as stream:
                found = hashlib.file_digest(stream, self.algorithm).hexdigest()
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise UserError(f"{path}: expected a whole gzip file: {error}") from None
        if found != self.digest:
            name = self.algorithm.upper().replace("SHA", "SHA-")
            what = f"{name} of the content" if self.unpacked else name
            raise UserError(f"{path}: expected {what} {self.digest}, got {found}")


def file_sha256(path: pathlib.Path) -> str:
    """Returns the SHA-256 of a file, hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
