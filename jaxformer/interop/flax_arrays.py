"""Arrays of the Flax models of transformers 4, which version 5 no longer reads.

``flax_model.msgpack`` holds nested dictionaries of arrays, as ``flax.serialization`` writes them.
That module would also build lists, numbers and arrays of any type. Here, only dictionaries and
arrays of floats are read, in memory that is proportional to the size of the file.

Names and axes become PyTorch's, so that one layout serves both kinds of files.
"""

import io
import math
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import msgpack
import numpy as np

from jaxformer.errors import MALFORMED, UserError, prefix_errors
from jaxformer.files import explain_read_errors, open_file

# Codes of extension types: arrays, and scalars of NumPy, which are arrays without axes.
_ARRAY_CODES = (1, 3)
_DTYPES = {
    b"bfloat16": jnp.bfloat16,
    b"float16": np.float16,
    b"float32": np.float32,
    b"float64": np.float64,
}
_MAX_AXES = 32
_MAX_DEPTH = 32  # of dictionaries; T5 has 8
_MAX_NAME = 200  # characters of a key
_MAX_ENTRIES = 1 << 16  # of all dictionaries
# A key of the dictionary that stands for an array of more than a gigabyte.
_CHUNKED = "__msgpack_chunked_array__"
# Last parts of names in Flax, and in PyTorch.
_PYTORCH_NAMES = {"kernel": "weight", "embedding": "weight", "scale": "weight"}

Arrays = dict[str, np.ndarray]


def read_flax(path: pathlib.Path, skip: re.Pattern[str]) -> Arrays:
    """Reads the arrays of flax_model.msgpack by PyTorch's names, except those ``skip`` matches.

    Raises:
      UserError: The file is damaged, or holds anything but arrays of floats.
    """
    with explain_read_errors(path), open_file(path) as file:
        tree = _unpack(path, file)

    arrays = {}
    with prefix_errors(str(path)):
        for parts, leaf in _leaves(tree):
            name = ".".join(parts)
            expected = f"expected {name:.200} to be an array of floats"
            with prefix_errors(expected, *MALFORMED, msgpack.UnpackException):
                arrays[name] = _read_leaf(leaf)
        found = to_pytorch(arrays)
    return {name: array for name, array in found.items() if not skip.fullmatch(name)}


def pytorch_name(name: str) -> str:
    """Returns PyTorch's name of an array of Flax, whose parts are separated by "/" or ".".

    >>> pytorch_name("transformer/h/0/attn/c_attn/kernel")
    'transformer.h.0.attn.c_attn.weight'
    """
    *path, last = re.split("[/.]", name)
    last_in_pytorch = _PYTORCH_NAMES.get(last, last)
    return ".".join([*path, last_in_pytorch])


def to_pytorch(arrays: Mapping[str, np.ndarray]) -> Arrays:
    """Returns arrays by PyTorch's names, with the order of PyTorch's axes."""
    found: Arrays = {}
    for name, array in arrays.items():
        renamed = pytorch_name(name)
        if renamed in found:
            raise UserError(f"expected each tensor once, got {renamed} twice")

        *_, last = re.split("[/.]", name)
        if last == "kernel":
            array = _reorder_kernel(array)
        found[renamed] = array
    return found


def _reorder_kernel(kernel: np.ndarray) -> np.ndarray:
    """Returns a kernel with its outputs first; one of a picture is [height, width, in, out]."""
    if kernel.ndim == 4:
        return kernel.transpose(3, 2, 0, 1)
    return kernel.T


def _unpack(path: pathlib.Path, file: io.BufferedReader) -> dict[str, Any]:
    """Reads nested dictionaries, whose leaves are not parsed yet."""
    num_entries = 0

    def read_dictionary(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
        nonlocal num_entries
        num_entries += 1 + len(pairs)
        if num_entries > _MAX_ENTRIES:
            raise UserError(f"found more than {_MAX_ENTRIES:,} entries")

        for key, _ in pairs:
            if not isinstance(key, str) or len(key) > _MAX_NAME:
                raise UserError(f"found the name {key!r:.80}")
        return dict(pairs)

    unpacker = msgpack.Unpacker(
        file,
        object_pairs_hook=read_dictionary,
        max_buffer_size=0,  # No limit but the file's size; it must hold the largest array.
        max_map_len=_MAX_ENTRIES,
        # Its memory is allocated before its elements are read; no model has one.
        max_array_len=0,
    )
    try:
        tree = unpacker.unpack()
        if not isinstance(tree, dict):
            raise UserError(f"found {type(tree).__name__}")
        if unpacker.read_bytes(1):
            raise UserError("found more after them")
        return tree
    except (*MALFORMED, msgpack.UnpackException) as error:
        # Some errors of msgpack have no text.
        reason = str(error) or type(error).__name__
        raise UserError(
            f"{path}: expected nested dictionaries of arrays, as Flax writes them: {reason}"
        ) from None


def _leaves(
    tree: dict[str, Any],
    parts: tuple[str, ...] = (),
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields the names and the value of each leaf, and removes it, since it may be large."""
    if len(parts) > _MAX_DEPTH:
        raise UserError(f"expected dictionaries at most {_MAX_DEPTH} deep")

    for name in list(tree):
        value = tree.pop(name)
        path = (*parts, name)
        if isinstance(value, dict) and _CHUNKED not in value:
            yield from _leaves(value, path)
        else:
            yield path, value


def _read_leaf(leaf: Any) -> np.ndarray:
    if not isinstance(leaf, dict):
        return _read_array(leaf)

    chunks = [_read_array(chunk) for chunk in _in_order(leaf["chunks"])]
    joined = np.concatenate(chunks)
    shape = _in_order(leaf["shape"])
    return _reshape(joined, shape)


def _in_order(values: dict[str, Any]) -> list[Any]:
    """Returns the values of a dictionary with the keys "0", "1" and so on."""
    keys = [str(number) for number in range(len(values))]
    return [values[key] for key in keys]


def _read_array(leaf: Any) -> np.ndarray:
    """Returns an array, stored as its shape, the name of its dtype, and its bytes."""
    if not isinstance(leaf, msgpack.ExtType) or leaf.code not in _ARRAY_CODES:
        raise UserError(f"got {type(leaf).__name__}")

    shape, dtype, content = msgpack.unpackb(leaf.data, raw=True, max_array_len=_MAX_AXES)
    if dtype not in _DTYPES:
        raise UserError(f"got {dtype!r:.40}")

    flat = np.frombuffer(content, _DTYPES[dtype])
    return _reshape(flat, shape)


def _reshape(array: np.ndarray, shape: list[int]) -> np.ndarray:
    """Returns the array in a shape, in which NumPy would also take -1."""
    has_negative_size = min(shape, default=0) < 0
    if has_negative_size or math.prod(shape) != array.size:
        raise UserError(f"got {array.size} numbers for the shape {shape!r:.80}")
    return array.reshape(shape)
