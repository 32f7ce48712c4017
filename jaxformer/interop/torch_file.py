"""Reading of the tensors in a file of ``torch.save``, such as pytorch_model.bin.

The file is a zip archive with a pickle of the names, sizes and strides, and one member of plain
numbers for each storage. A pickle is a program. This module never runs it: it reads its opcodes,
follows the few that a dictionary of tensors needs, and refuses all others by name.
"""

import itertools
import math
import pathlib
import pickletools
import zipfile
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxformer.errors import UserError
from jaxformer.files import open_file, readable

# Names, sizes and strides take about 200 bytes and 40 opcodes for each tensor.
_MOST_PICKLE_BYTES = 1 << 20
_MOST_OPCODES = 1 << 18
_MOST_AXES = 8
# Of data that are not what torch.save writes.
_DAMAGES = (
    *(zipfile.BadZipFile, zipfile.LargeZipFile, EOFError, NotImplementedError),
    *(LookupError, OverflowError, RuntimeError, TypeError, ValueError),
)


class _Global(NamedTuple):
    """A function or class that the pickle names. It is never imported."""

    module: str
    name: str


_DTYPES = {
    _Global("torch", "BFloat16Storage"): np.dtype(jnp.bfloat16),
    _Global("torch", "DoubleStorage"): np.dtype("<f8"),
    _Global("torch", "FloatStorage"): np.dtype("<f4"),
    _Global("torch", "HalfStorage"): np.dtype("<f2"),
}
_DICT = _Global("collections", "OrderedDict")
_TENSOR = _Global("torch._utils", "_rebuild_tensor_v2")
_GLOBALS = {*_DTYPES, _DICT, _TENSOR}
# Opcodes that push a constant, opcodes that push their argument, and the lengths of tuples.
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_PLAIN = {"BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE"}
_TUPLES = {"TUPLE": None, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Storage(NamedTuple):
    """The numbers of one or several tensors: a member of the archive."""

    dtype: np.dtype
    key: str
    size: int


class _Tensor(NamedTuple):
    """A view of a storage, with sizes and strides in elements."""

    storage: _Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


class _RefusedError(Exception):
    """The pickle has an opcode or a name that no dictionary of tensors needs."""


def read_torch(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Reads all tensors of a file of ``torch.save`` in its zip format, of PyTorch 1.6 and later.

    Arrays are views of as many bytes as the file has, whatever sizes it claims.

    Raises:
      UserError: The file cannot be read or is damaged, is not a dictionary of tensors of floats, or
        has another format.
    """
    try:
        with readable(path), open_file(path) as file:
            size = file.seek(0, 2)
            file.seek(0)
            if not zipfile.is_zipfile(file):
                raise _RefusedError("it is not a zip archive; PyTorch before 1.6 wrote others")
            with zipfile.ZipFile(file) as archive:
                return _read_archive(archive, size)
    except UserError:
        raise
    except _RefusedError as error:
        reason = str(error)
    except _DAMAGES:
        reason = "it is damaged"
    folder = repr(str(path.parent))
    raise UserError(
        f"{path}: expected a dictionary of tensors of floats, as torch.save writes it, but "
        f"{reason}; nothing of it was run; if you trust it, convert it with PyTorch: "
        f"MarianMTModel.from_pretrained({folder}).save_pretrained({folder})"
    )


def _read_archive(archive: zipfile.ZipFile, most_bytes: int) -> dict[str, np.ndarray]:
    names = [name for name in archive.namelist() if name.endswith("/data.pkl")]
    if len(names) != 1:
        raise _RefusedError(f"it has {len(names)} members data.pkl")
    root = names[0].removesuffix("data.pkl")
    order = f"{root}byteorder"
    if order in archive.namelist() and _member(archive, order, 10) != b"little":
        raise _RefusedError("it is of a big-endian machine")
    tensors = _Interpreter().run(_member(archive, names[0], _MOST_PICKLE_BYTES))
    if not isinstance(tensors, dict):
        raise _RefusedError("it holds something else")
    stored: dict[str, bytes] = {}
    arrays = {}
    for name, tensor in tensors.items():
        if not isinstance(tensor, _Tensor):
            raise _RefusedError(f"{name!r:.80} is no tensor")
        key, nbytes = tensor.storage.key, tensor.storage.size * tensor.storage.dtype.itemsize
        if key not in stored:
            # Members of an archive may overlap, so that their sizes have no limit.
            left = most_bytes - sum(map(len, stored.values()))
            stored[key] = _member(archive, f"{root}data/{key}", left)
        if len(stored[key]) != nbytes:
            raise _RefusedError(f"{name!r:.80} has not the size of its storage")
        arrays[name] = _view(name, tensor, stored[key])
    return arrays


def _member(archive: zipfile.ZipFile, name: str, most_bytes: int) -> bytes:
    """Reads a member that is not compressed, so that it takes no more memory than its file."""
    info = archive.getinfo(name)
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
        raise _RefusedError(f"{name!r:.80} is compressed")
    if info.file_size > most_bytes:
        raise _RefusedError(f"{name!r:.80} has more than {most_bytes:,} bytes")
    return archive.read(info)


def _view(name: str, tensor: _Tensor, content: bytes) -> np.ndarray:
    storage, offset, size, stride = tensor
    numbers = [offset, *size, *stride]
    whole = all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers)
    if not whole or len(size) != len(stride) or len(size) > _MOST_AXES:
        raise _RefusedError(f"{name!r:.80} has no sizes and strides")
    count = math.prod(size)
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if count > storage.size or (count and last >= storage.size):
        raise _RefusedError(f"{name!r:.80} is larger than its storage")
    if not count:
        return np.zeros(size, storage.dtype)
    numbers = np.frombuffer(content, storage.dtype)[offset:]
    steps = [step * storage.dtype.itemsize for step in stride]
    return np.lib.stride_tricks.as_strided(numbers, size, steps, writeable=False)


class _Interpreter:
    """Follows the opcodes of a pickle that build dictionaries, tuples, plain values and tensors."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def run(self, pickled: bytes) -> Any:
        """Returns what a pickle describes.

        Raises:
          _RefusedError: The pickle has an opcode or a name that a dictionary of tensors needs not.
        """
        stack = self._stack
        argument: Any
        for opcode, argument, _ in itertools.islice(pickletools.genops(pickled), _MOST_OPCODES):
            name = opcode.name
            if name in _CONSTANTS:
                stack.append(_CONSTANTS[name])
            elif name in _PLAIN:
                stack.append(argument)
            elif name == "EMPTY_DICT":
                stack.append({})
            elif name == "MARK":
                self._marks.append(len(stack))
            elif name in _TUPLES:
                stack.append(tuple(self._pop(_TUPLES[name])))
            elif name in ("SETITEM", "SETITEMS"):
                items = self._pop(2 if name == "SETITEM" else None)
                _set_items(stack[-1], items)
            elif name in ("BINPUT", "LONG_BINPUT"):
                self._memo[argument] = stack[-1]
            elif name in ("BINGET", "LONG_BINGET"):
                stack.append(self._memo[argument])
            elif name == "GLOBAL":
                stack.append(_global(argument))
            elif name == "BINPERSID":
                stack.append(_storage(*stack.pop()))
            elif name == "REDUCE":
                stack.append(_reduce(*self._pop(2)))
            elif name == "BUILD":
                versions = stack.pop()
                _check_versions(versions, stack[-1])
            elif name == "STOP":
                return stack.pop()
            elif name != "PROTO":
                raise _RefusedError(f"its pickle has the opcode {name}")
        raise _RefusedError(f"its pickle has no end within {_MOST_OPCODES:,} opcodes")

    def _pop(self, count: int | None) -> list[Any]:
        """Removes and returns some values, or all since the last mark."""
        start = self._marks.pop() if count is None else len(self._stack) - count
        if not 0 <= start <= len(self._stack):
            raise IndexError("expected more values on the stack")
        values = self._stack[start:]
        del self._stack[start:]
        return values


def _set_items(target: Any, items: list[Any]) -> None:
    if not isinstance(target, dict) or len(items) % 2:
        raise _RefusedError("its pickle fills something else than a dictionary")
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not isinstance(key, str):
            raise _RefusedError("its pickle has names that are not text")
        target[key] = value


def _check_versions(versions: Any, target: Any) -> None:
    """Checks that a pickle sets attributes only of a dictionary; they are not needed.

    PyTorch keeps the versions of its modules in an attribute of a state dictionary.
    """
    if not isinstance(versions, dict) or not isinstance(target, dict):
        raise _RefusedError("its pickle sets attributes of something else than a dictionary")


def _global(argument: str) -> _Global:
    found = _Global(*argument.split(" ", 1))
    if found not in _GLOBALS:
        raise _RefusedError(f"its pickle needs {f'{found.module}.{found.name}'!r:.80}")
    return found


def _storage(kind: str, dtype: _Global, key: str, location: str, size: int) -> _Storage:
    """Returns the storage that the tuple of a persistent id describes."""
    # The isinstance comes before hashing, which can take forever for tuples of tuples.
    known = kind == "storage" and isinstance(dtype, _Global) and dtype in _DTYPES
    if not known or not isinstance(key, str) or type(size) is not int or size < 0:
        raise _RefusedError("its pickle has another persistent id")
    return _Storage(_DTYPES[dtype], key, size)


def _reduce(function: Any, arguments: Any) -> Any:
    """Returns what one of the two known functions would return."""
    if function == _DICT and arguments == ():
        return {}
    if function != _TENSOR or not isinstance(arguments, tuple):
        raise _RefusedError("its pickle calls something else than two known functions")
    storage, offset, size, stride, *_ = arguments
    if not (isinstance(storage, _Storage) and isinstance(size, tuple)):
        raise _RefusedError("its pickle describes a tensor in another way")
    return _Tensor(storage, offset, size, stride)
