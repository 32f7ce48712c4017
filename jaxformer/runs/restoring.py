"""Reads a step of a run: verified, and within limits if it is untrusted.

Hashes prove nothing about an untrusted step, whose author also wrote the manifest. Sizes are
checked before anything in such a step is used.
"""

import json
import math
import pathlib
import re
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp
from jaxtyping import PyTree

from jaxformer.errors import UserError
from jaxformer.files import read_json
from jaxformer.layout import global_mesh
from jaxformer.runs import manifest
from jaxformer.runs.manifest import Manifest

# Arrays may be this many times as large as their files, plus a constant. Compressed weights take
# about 0.9 of their size, and pruned weights less.
_COMPRESSION = 16
_SMALL = 256 << 20
# Dtypes of numbers in Zarr 2, such as "<f4" and "bfloat16"; no records or strings.
_NUMBERS = re.compile(r"[<>|][biufc]\d{1,2}|(bfloat|float|u?int)\d\w{0,10}")
_LARGEST_NUMBER = 16


class Restored(NamedTuple):
    """A state, bit for bit as it was saved."""

    step: int
    state: PyTree  # sharded like the template
    metadata: dict[str, Any]  # as given to Checkpoints.save


def read_step(folder: pathlib.Path, template: PyTree, *, partial: bool) -> Restored:
    """Verifies and reads a step, locked meanwhile; a ``partial`` one may be untrusted."""
    Manifest.read(folder)  # before locking, since it may be a link out of the workdir or a pipe
    with manifest.lock_step(folder, shared=True):
        before = manifest.file_versions(folder)
        saved = Manifest.read(folder, verify=True)
        saved.check_leaves(manifest.describe_leaves(template), partial=partial)

        try:
            if partial:  # The config may be untrusted, too.
                check_memory(folder, template)
            state = _restore(folder, template, partial)
        except (UserError, OSError, MemoryError, jax.errors.JaxRuntimeError):
            raise
        except Exception as error:
            # Orbax has no class for its errors.
            message = str(error)[:500]
            cause = f"{type(error).__name__}: {message}"
            raise UserError(
                f"{folder} is as it was saved, but cannot be restored: {cause}"
            ) from error
        finally:
            if manifest.file_versions(folder) != before:
                raise UserError(f"{folder} changed while it was read; run the same command again")
    return Restored(saved.step, state, saved.metadata)


@global_mesh(None)
def _restore(folder: pathlib.Path, template: PyTree, partial: bool) -> PyTree:
    def abstract(leaf: Any) -> jax.ShapeDtypeStruct:
        sharding = getattr(leaf, "sharding", None)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    def place(array: Any) -> jax.Array:
        # Arrays of several processes cannot be placed elsewhere.
        if isinstance(array, jax.Array):
            return array
        return jax.device_put(array)

    template = jax.tree.map(abstract, template)
    args = ocp.args.PyTreeRestore(
        template,
        restore_args=ocp.checkpoint_utils.construct_restore_args(template),
        partial_restore=partial,
    )
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        arrays = checkpointer.restore(folder, args=args)
    return jax.block_until_ready(jax.tree.map(place, arrays))


def check_memory(folder: pathlib.Path, template: PyTree) -> None:
    """Checks that the memory for reading arrays is proportional to the files of the step."""
    # The manifest confirms the shapes.
    size = 0
    for leaf in jax.tree.leaves(template):
        size += math.prod(leaf.shape) * leaf.dtype.itemsize

    files = manifest.list_files(folder)
    stored = sum(status.st_size for status in files.values())
    if size > _SMALL + _COMPRESSION * stored:
        raise UserError(f"{folder}: expected files for arrays of {size:,} bytes, found {stored:,}")

    path = folder / manifest.METADATA
    metadata = read_json(path)
    is_object = isinstance(metadata, dict)
    if not is_object or not metadata.get("use_ocdbt") or metadata.get("use_zarr3"):
        raise UserError(f"{path}: expected arrays in the formats OCDBT and Zarr 2")

    _check_chunks(folder, size)


def _check_chunks(folder: pathlib.Path, size: int) -> None:
    """Checks that no chunk, which is decompressed as a whole, is larger than all arrays."""
    import tensorstore

    database: dict[str, Any] = {
        "driver": "ocdbt",
        "base": folder.absolute().as_uri() + "/",
    }
    store = tensorstore.KvStore.open(database).result()
    for key in store.list().result():
        if not key.endswith(b"/.zarray"):
            continue

        name = key.decode(errors="replace")
        metadata = store.read(key).result().value
        chunk = _chunk_size(f"{folder}: {name:.200}", metadata)
        if chunk > _SMALL + size:
            raise UserError(
                f"{folder}: expected chunks within arrays of {size:,} bytes, found one of "
                f"{chunk:,} in {name!r:.200}"
            )


def _chunk_size(place: str, metadata: bytes) -> int:
    """Bounds the bytes of a chunk, which TensorStore cannot: it would allocate a record first."""
    try:
        values = json.loads(metadata)
        chunk = values["chunks"]
        dtype = values["dtype"]
        holds_numbers = isinstance(dtype, str) and _NUMBERS.fullmatch(dtype)
        has_sizes = all(type(size) is int and size >= 0 for size in chunk)
        if holds_numbers and has_sizes:
            return math.prod(chunk) * _LARGEST_NUMBER

    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise UserError(f"{place}: expected the metadata of an array of numbers")
