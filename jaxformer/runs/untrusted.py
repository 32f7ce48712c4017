"""Checks of a step that somebody else may have made, before anything in it is used.

Hashes prove nothing about such a step: whoever wrote its files also wrote its manifest.
"""

import json
import math
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import jax
from jaxtyping import PyTree

from jaxformer.errors import UserError
from jaxformer.files import read_json

METADATA = "_METADATA"
# Without these files orbax would read a checkpoint in another format, from files of other names.
ESSENTIAL = (METADATA, "manifest.ocdbt")
# Arrays may take this many times the bytes of their files, and this much in any case. Compressed
# weights take about 0.9 of their size, and pruned weights less.
_COMPRESSION, _SMALL = 16, 256 << 20
# Dtypes of Zarr 2, such as "<f4" and "bfloat16", and not records or strings.
_NUMBERS = re.compile(r"[<>|][biufc]\d{1,2}|(bfloat|float|u?int)\d\w{0,10}")
_LARGEST_NUMBER = 16


class DamagedError(UserError):
    """A step on disk is not what was saved."""


def check_listing(folder: pathlib.Path, listed: set[str], optional: set[str]) -> None:
    """Checks that a folder has the listed files, and no others that orbax might read.

    Hidden files, which file managers and network file systems create, are never read.

    Args:
      folder: The folder of a step.
      listed: Names of files, relative to the folder.
      optional: Beginnings of names of files that may exist.

    Raises:
      DamagedError: A file is missing, is not listed, or is not a regular file.
    """
    try:
        entries = [entry for entry in _walk(folder) if not entry.name.startswith(".")]
    except OSError as error:
        raise DamagedError(f"{folder} cannot be read: {error.strerror}") from None
    found = set()
    for entry in entries:
        name = pathlib.Path(entry.path).relative_to(folder).as_posix()
        if not entry.is_file(follow_symlinks=False):
            raise DamagedError(f"{entry.path}: expected a regular file, found a link or a device")
        if name not in listed and not name.startswith(tuple(optional)):
            raise DamagedError(f"{entry.path} was not saved with the checkpoint")
        found.add(name)
    if missing := sorted(listed.union(ESSENTIAL) - found):
        raise DamagedError(f"{folder / missing[0][:200]} cannot be read: No such file or directory")


def _walk(folder: pathlib.Path) -> Iterator[os.DirEntry]:
    """Yields everything in a folder and its folders except the folders themselves."""
    todo = [os.fspath(folder)]
    while todo:
        with os.scandir(todo.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    todo.append(entry.path)
                else:
                    yield entry


def check_sizes(folder: pathlib.Path, template: PyTree) -> None:
    """Checks that reading arrays takes memory in proportion to the files of the step.

    Args:
      folder: The folder of a step.
      template: The arrays to read, whose shapes the manifest confirms.

    Raises:
      DamagedError: The arrays, or their chunks, are much larger than the files.
    """
    leaves = jax.tree.leaves(template)
    size = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)
    stored = sum(entry.stat(follow_symlinks=False).st_size for entry in _walk(folder))
    if size > _SMALL + _COMPRESSION * stored:
        raise DamagedError(
            f"{folder}: expected files for arrays of {size:,} bytes, found {stored:,}"
        )
    for name, chunk in _chunk_sizes(folder):
        if chunk > _SMALL + size:
            raise DamagedError(
                f"{folder}: expected chunks within arrays of {size:,} bytes, found one of "
                f"{chunk:,} in {name!r:.200}"
            )


def _chunk_sizes(folder: pathlib.Path) -> Iterator[tuple[str, int]]:
    """Yields names of arrays and the bytes of a chunk, which is decompressed as a whole."""
    import tensorstore

    metadata = read_json(folder / METADATA)
    if not isinstance(metadata, dict) or not metadata.get("use_ocdbt") or metadata.get("use_zarr3"):
        raise DamagedError(f"{folder / METADATA}: expected arrays in the formats OCDBT and Zarr 2")
    database: dict[str, Any] = {"driver": "ocdbt", "base": folder.absolute().as_uri() + "/"}
    store = tensorstore.KvStore.open(database).result()
    for key in store.list().result():
        if key.endswith(b"/.zarray"):
            name = key.decode(errors="replace")
            yield name, _chunk_size(f"{folder}: {name:.200}", store.read(key).result().value)


def _chunk_size(place: str, metadata: bytes) -> int:
    """Returns an upper bound of the bytes of a chunk.

    TensorStore itself cannot tell: opening an array of records allocates one of them.
    """
    try:
        values = json.loads(metadata)
        chunk, dtype = values["chunks"], values["dtype"]
        good = isinstance(dtype, str) and _NUMBERS.fullmatch(dtype)
        if good and all(type(size) is int and size >= 0 for size in chunk):
            return math.prod(chunk) * _LARGEST_NUMBER
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise DamagedError(f"{place}: expected the metadata of an array of numbers")
