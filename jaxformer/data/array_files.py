"""Arrays of ``.npz`` files that others have written."""

import pathlib
import zipfile
from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from jaxformer.errors import UserError, prefix_errors
from jaxformer.files import explain_read_errors, open_file

# A member of zeros is a thousand times larger than its file.
_MAX_BYTES = 4 << 30


class ArrayFile(NamedTuple):
    """The arrays that were asked for and that a file has, and the names of all its arrays."""

    arrays: dict[str, np.ndarray]
    names: list[str]


def read_arrays(path: pathlib.Path, names: Collection[str]) -> ArrayFile:
    """Reads some arrays of a file, which may lack them.

    Raises:
      UserError: There is no such file, or it is damaged, or has objects that are not arrays.
    """
    place = f"{path}: expected an .npz file of arrays"
    # Damage raises exceptions of any type, from zipfile, zlib or numpy.
    with explain_read_errors(path), open_file(path) as stream, prefix_errors(place, Exception):
        if not zipfile.is_zipfile(stream):
            raise ValueError("it is not a zip archive")

        members = zipfile.ZipFile(stream).infolist()
        size = sum(member.file_size for member in members)
        if size > _MAX_BYTES:
            raise UserError(f"expected at most {_MAX_BYTES:,} bytes of arrays, found {size:,}")
        stream.seek(0)

        # numpy reads pickles only on request.
        with np.load(stream) as file:
            wanted = [name for name in names if name in file.files]
            found = {name: file[name] for name in wanted}
            return ArrayFile(found, file.files)
