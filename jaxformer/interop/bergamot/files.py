"""The binary files of Bergamot's models: tensors, and lists of likely translations.

All numbers are little-endian. A file of tensors has a header for each of them, then all names, all
shapes, and all data:

    u64 version, u64 N, N times u64 {length of the name, type, number of axes, bytes of data}
    N names that end with NUL, N shapes of int32, u64 bytes of padding and the padding, N times data
"""

import pathlib
import re
import struct
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from jaxformer.errors import UserError
from jaxformer.files import read_whole, write_file

_MAX_BYTES = 2**31
_MAX_TENSORS, _MAX_NAME, _MAX_AXES = 4096, 256, 4
_INT8, _FLOAT32 = {0x101}, {0x404}
# In Bergamot's fork of Marian, and in Marian: int8 values, and then their multiplier, float32.
_INTGEMM8 = {0x4101, 0x10001}
_REFUSED = {
    **dict.fromkeys((0x4102, 0x10002), "intgemm16, matrices of 16 bits"),
    **dict.fromkeys((0x11001, 0x12001, 0x13001, 0x18001), "a matrix packed for one kind of CPU"),
}
# Matrices of these names are stored transposed, under the shape that they have otherwise.
_TRANSPOSED = re.compile(r".*_W[a-z0-9]?")
_SETTINGS = "special:model.yml"
_ALIGNMENT = 256  # of the data of each tensor
_SETTING = re.compile(r"([\w-]+): *(\S.*?)?\s*")
_SHORTLIST = 0xF11A48D5013417F5


class _Cursor:
    """A position in the bytes of a file, behind which nothing is read."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path, self.place = path, 0
        self.content = read_whole(path, limit=_MAX_BYTES)

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self.content) - self.place:
            raise self.error(f"ends after {len(self.content)} bytes, within its data")
        self.place += size
        return self.content[self.place - size : self.place]

    def numbers(self, count: int, dtype: str = "<u8") -> list[int]:
        return np.frombuffer(self.take(count * np.dtype(dtype).itemsize), dtype).tolist()

    def error(self, reason: str) -> UserError:
        return UserError(f"{self.path}: expected a file of Bergamot or Marian, but it {reason}")


def read_tensors(path: pathlib.Path) -> tuple[dict[str, Float[np.ndarray, "..."]], dict[str, str]]:
    """Returns tensors by name, and the model's settings; refuses a damaged or encrypted file."""
    cursor = _Cursor(path)
    version, count = cursor.numbers(2)
    if version != 1:
        kind = "encrypted, version 2" if version == 2 else f"of version {version}"
        raise cursor.error(f"is {kind}; version 1 is read")
    if count > _MAX_TENSORS:
        raise cursor.error(f"has {count} tensors, more than {_MAX_TENSORS}")
    headers = [cursor.numbers(4) for _ in range(count)]
    for length, _, axes, _ in headers:
        if not 1 < length <= _MAX_NAME or axes > _MAX_AXES:
            raise cursor.error(f"has a name of {length} bytes and {axes} axes")
    names = [cursor.take(length)[:-1].decode("latin-1") for length, *_ in headers]
    shapes = [cursor.numbers(axes, "<i4") for _, _, axes, _ in headers]
    cursor.take(cursor.numbers(1)[0])
    tensors: dict[str, np.ndarray] = {}
    settings: dict[str, str] = {}
    for name, shape, (_, kind, _, size) in zip(names, shapes, headers, strict=True):
        data = cursor.take(size)
        if name in tensors:
            raise cursor.error(f"has two tensors {name}")
        if kind in _INT8 and name == _SETTINGS:
            settings = _parse(data.rstrip(b"\0").decode("utf-8", "replace"))
        else:
            tensors[name] = _values(cursor, name, kind, shape, data)
    return tensors, settings


def _values(
    cursor: _Cursor, name: str, kind: int, shape: list[int], data: bytes
) -> Float[np.ndarray, "..."]:
    size = int(np.prod(shape, dtype=object)) if shape else 1
    width = 4 if kind in _FLOAT32 else 1
    if kind not in _FLOAT32 | _INTGEMM8:
        known = _REFUSED.get(kind, f"of type {kind:#x}")
        raise UserError(f"{cursor.path}: {name} is {known}; float32 and intgemm8 are read")
    if min(shape, default=1) < 1 or len(data) < width * size + 4 * (kind in _INTGEMM8):
        raise cursor.error(f"has {len(data)} bytes for {name} of shape {shape}")
    if kind in _FLOAT32:
        return np.frombuffer(data, "<f4", size).reshape(shape)
    (multiplier,) = np.frombuffer(data, "<f4", 1, size)
    if not (np.isfinite(multiplier) and multiplier > 0):
        raise cursor.error(f"has the multiplier {multiplier} for {name}")
    values = np.frombuffer(data, np.int8, size).astype(np.float32) / multiplier
    return values.reshape(shape[::-1]).T if _TRANSPOSED.fullmatch(name) else values.reshape(shape)


def write_tensors(
    path: pathlib.Path, tensors: dict[str, Float[np.ndarray, "..."]], settings: dict[str, str]
) -> None:
    """Writes matrices as int8, where the largest value becomes 127, all else as float32."""
    given = {name: value or '""' for name, value in sorted(settings.items())}
    text = "".join(f"{name}: {value}\n" for name, value in given.items())
    blobs = {name: _serialize(name, tensors[name]) for name in sorted(tensors)}
    blobs[_SETTINGS] = 0x101, text.encode() + b"\0"
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    shapes[_SETTINGS] = (len(blobs[_SETTINGS][1]),)
    start = struct.pack("<2Q", 1, len(blobs))
    for name, (kind, data) in blobs.items():
        start += struct.pack("<4Q", len(name) + 1, kind, len(shapes[name]), len(data))
    start += b"".join(name.encode() + b"\0" for name in blobs)
    start += b"".join(np.array(shapes[name], "<i4").tobytes() for name in blobs)
    padding = -(len(start) + 8) % _ALIGNMENT
    content = [start, struct.pack("<Q", padding), bytes(padding), *(d for _, d in blobs.values())]
    write_file(path, b"".join(content))


def _serialize(name: str, tensor: Float[np.ndarray, "..."]) -> tuple[int, bytes]:
    kind, data = 0x404, tensor.astype("<f4").tobytes()
    if _TRANSPOSED.fullmatch(name) or name.startswith("Wemb"):
        multiplier = np.float32(127) / np.abs(tensor).max().astype(np.float32)
        values = np.rint(tensor * multiplier).astype(np.int8)
        values = values.T if _TRANSPOSED.fullmatch(name) else values
        kind, data = 0x4101, values.tobytes() + multiplier.astype("<f4").tobytes()
    return kind, data + bytes(-len(data) % _ALIGNMENT)


def _parse(text: str) -> dict[str, str]:
    """Returns the scalars of a YAML mapping, and the items of its lists, joined by spaces."""
    found, last = {}, ""
    for line in text.splitlines():
        if match := _SETTING.fullmatch(line):
            last = match[1]
            found[last] = (match[2] or "").strip("\"'")
        elif line.lstrip().startswith("- ") and last:
            found[last] = f"{found[last]} {line.lstrip()[2:].strip()}".strip()
    return found


class Shortlist(NamedTuple):
    """Likely translations, as in :class:`~jaxformer.inference.shortlist.Shortlist`."""

    first: int  # number of the first tokens of the vocabulary, which are always likely
    offsets: Int[np.ndarray, " _"]
    tokens: Int[np.ndarray, " E"]


def read_shortlist(path: pathlib.Path) -> Shortlist:
    """Reads a shortlist, such as ``lex.50.50.ende.s2t.bin``; refuses a damaged one."""
    cursor = _Cursor(path)
    magic, checksum = cursor.numbers(2)
    if magic != _SHORTLIST:
        raise cursor.error("does not begin as a shortlist")
    start = cursor.place
    first, _, num_offsets, num_tokens = cursor.numbers(4)
    offsets = np.frombuffer(cursor.take(8 * num_offsets), "<u8").astype(np.int64)
    tokens = np.frombuffer(cursor.take(4 * num_tokens), "<u4").astype(np.int64)
    if cursor.place != len(cursor.content) or _checksum(cursor.content[start:]) != checksum:
        raise cursor.error("has another checksum: it is damaged")
    if not num_offsets or offsets[-1] != num_tokens or (np.diff(offsets) < 0).any():
        raise cursor.error("has offsets that do not fit its tokens")
    return Shortlist(first, offsets, tokens)


def write_shortlist(path: pathlib.Path, shortlist: Shortlist) -> None:
    first, offsets, tokens = shortlist
    longest = np.diff(offsets).max(initial=0)
    body = np.array([first, longest, len(offsets), len(tokens)], "<u8").tobytes()
    body += offsets.astype("<u8").tobytes() + tokens.astype("<u4").tobytes()
    write_file(path, struct.pack("<2Q", _SHORTLIST, _checksum(body)) + body)


def _checksum(content: bytes) -> int:
    """Returns Marian's hash of whole 64-bit words."""
    total = 0
    for word in np.frombuffer(content[: len(content) // 8 * 8], "<u8").tolist():
        total ^= (word + 0x9E3779B9 + (total << 6) + (total >> 2)) % 2**64
    return total % 2**64
