"""The binary files of Bergamot's models: tensors, and lists of likely translations.

All numbers are little-endian. A file of tensors has a header for each of them, then all names, all
shapes, and all data:

    u64 version, u64 N, N times u64 {length of the name, type, number of axes, bytes of data}
    N names that end with NUL, N shapes of int32, u64 bytes of padding and the padding, N times data
"""

import math
import pathlib
import re
import struct
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from jaxformer.errors import UserError
from jaxformer.files import read_whole, write_file

_MAX_BYTES = 2**31
_MAX_TENSORS = 4096
_MAX_NAME_BYTES = 256
_MAX_AXES = 4
_VERSION = 1

# Types of tensors. The data of intgemm8 are int8 values, and then their multiplier, float32.
# Bergamot's fork of Marian has another number for this type than Marian.
_INT8 = 0x101
_FLOAT32 = 0x404
_INTGEMM8 = 0x4101
_INTGEMM8_OF_MARIAN = 0x10001
_KNOWN_KINDS = (_FLOAT32, _INTGEMM8, _INTGEMM8_OF_MARIAN)
_REFUSED_KINDS = {
    **dict.fromkeys((0x4102, 0x10002), "intgemm16, matrices of 16 bits"),
    **dict.fromkeys((0x11001, 0x12001, 0x13001, 0x18001), "a matrix packed for one kind of CPU"),
}
# In intgemm8, the values of these matrices are transposed; the shape is not.
_TRANSPOSED = re.compile(r".*_W[a-z0-9]?")
_ALIGNMENT = 256  # of the data of each tensor, in bytes

_SETTINGS = "special:model.yml"  # a tensor of the bytes of a YAML mapping
_SETTING = re.compile(r"([\w-]+): *(\S.*?)?\s*")  # a line with a name, and maybe a value
_EMPTY = '""'  # an empty value
_SHORTLIST_MAGIC = 0xF11A48D5013417F5  # the first number of a shortlist


class _Header(NamedTuple):
    """The header of a tensor, four numbers of 64 bits."""

    name_bytes: int  # with the NUL at its end
    kind: int
    num_axes: int
    data_bytes: int


class _Blob(NamedTuple):
    """A tensor to write."""

    name: str
    kind: int
    shape: tuple[int, ...]
    data: bytes  # with padding at the end


class _Cursor:
    """The content of a file, and the position of the byte to read next."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.position = 0
        self.content = read_whole(path, limit=_MAX_BYTES)

    def take(self, size: int) -> bytes:
        """Returns the next bytes; refuses a file that ends within them."""
        num_bytes = len(self.content)
        if not 0 <= size <= num_bytes - self.position:
            raise self.error(f"ends after {num_bytes} bytes, within its data")

        start = self.position
        self.position += size
        return self.content[start : self.position]

    def array(self, count: int, dtype: str) -> Int[np.ndarray, " _"]:
        itemsize = np.dtype(dtype).itemsize
        content = self.take(count * itemsize)
        return np.frombuffer(content, dtype)

    def numbers(self, count: int, dtype: str = "<u8") -> list[int]:
        return self.array(count, dtype).tolist()

    def error(self, reason: str) -> UserError:
        return UserError(f"{self.path}: expected a file of Bergamot or Marian, but it {reason}")


def read_tensors(path: pathlib.Path) -> tuple[dict[str, Float[np.ndarray, "..."]], dict[str, str]]:
    """Returns tensors by name, and the model's settings; refuses a damaged or encrypted file."""
    cursor = _Cursor(path)
    headers = _read_headers(cursor)
    names = [_read_name(cursor, header) for header in headers]
    shapes = [cursor.numbers(header.num_axes, "<i4") for header in headers]

    (padding,) = cursor.numbers(1)
    cursor.take(padding)

    tensors: dict[str, np.ndarray] = {}
    settings: dict[str, str] = {}
    for name, shape, header in zip(names, shapes, headers, strict=True):
        data = cursor.take(header.data_bytes)
        if name in tensors:
            raise cursor.error(f"has two tensors {name}")

        if header.kind == _INT8 and name == _SETTINGS:
            text = data.rstrip(b"\0").decode("utf-8", "replace")
            settings = _parse_settings(text)
        else:
            tensors[name] = _values(
                cursor,
                name,
                kind=header.kind,
                shape=shape,
                data=data,
            )
    return tensors, settings


def _read_name(cursor: _Cursor, header: _Header) -> str:
    with_nul = cursor.take(header.name_bytes)
    return with_nul[:-1].decode("latin-1")


def _read_headers(cursor: _Cursor) -> list[_Header]:
    version, count = cursor.numbers(2)
    if version != _VERSION:
        found = "encrypted, version 2" if version == 2 else f"of version {version}"
        raise cursor.error(f"is {found}; version {_VERSION} is read")

    if count > _MAX_TENSORS:
        raise cursor.error(f"has {count} tensors, more than {_MAX_TENSORS}")

    headers = [_Header(*cursor.numbers(4)) for _ in range(count)]
    for header in headers:
        has_name = 1 < header.name_bytes <= _MAX_NAME_BYTES
        if not has_name or header.num_axes > _MAX_AXES:
            raise cursor.error(
                f"has a name of {header.name_bytes} bytes and {header.num_axes} axes"
            )
    return headers


def _values(
    cursor: _Cursor,
    name: str,
    kind: int,
    shape: list[int],
    data: bytes,
) -> Float[np.ndarray, "..."]:
    """Returns a tensor as float32; padding may follow its data."""
    if kind not in _KNOWN_KINDS:
        found = _REFUSED_KINDS.get(kind, f"of type {kind:#x}")
        raise UserError(f"{cursor.path}: {name} is {found}; float32 and intgemm8 are read")

    # Python's integers do not overflow, whatever the shape.
    size = math.prod(shape)
    expected_bytes = 4 * size if kind == _FLOAT32 else size + 4
    is_empty = min(shape, default=1) < 1
    if is_empty or len(data) < expected_bytes:
        raise cursor.error(f"has {len(data)} bytes for {name} of shape {shape}")

    if kind == _FLOAT32:
        return np.frombuffer(data, "<f4", size).reshape(shape)

    (multiplier,) = np.frombuffer(data, "<f4", count=1, offset=size)
    is_valid = np.isfinite(multiplier) and multiplier > 0
    if not is_valid:
        raise cursor.error(f"has the multiplier {multiplier} for {name}")

    quantized = np.frombuffer(data, np.int8, size)
    values = quantized.astype(np.float32) / multiplier
    if _TRANSPOSED.fullmatch(name):
        return values.reshape(shape[::-1]).T
    return values.reshape(shape)


def write_tensors(
    path: pathlib.Path,
    tensors: dict[str, Float[np.ndarray, "..."]],
    settings: dict[str, str],
) -> None:
    """Writes matrices as int8, where the largest value becomes 127, all else as float32."""
    blobs = [_serialize(name, tensors[name]) for name in sorted(tensors)]
    yaml = _format_settings(settings).encode() + b"\0"
    settings_blob = _Blob(
        _SETTINGS,
        kind=_INT8,
        shape=(len(yaml),),
        data=yaml,
    )
    blobs.append(settings_blob)

    start = struct.pack("<2Q", _VERSION, len(blobs))
    for blob in blobs:
        header = _Header(
            name_bytes=len(blob.name) + 1,
            kind=blob.kind,
            num_axes=len(blob.shape),
            data_bytes=len(blob.data),
        )
        start += struct.pack("<4Q", *header)
    for blob in blobs:
        start += blob.name.encode() + b"\0"
    for blob in blobs:
        start += np.array(blob.shape, "<i4").tobytes()

    # The data begin at a multiple of the alignment, after the number of bytes of the padding.
    padding = -(len(start) + 8) % _ALIGNMENT
    start += struct.pack("<Q", padding)
    start += bytes(padding)
    data = b"".join(blob.data for blob in blobs)
    write_file(path, start + data)


def _serialize(name: str, tensor: Float[np.ndarray, "..."]) -> _Blob:
    is_transposed = _TRANSPOSED.fullmatch(name) is not None
    if is_transposed or name.startswith("Wemb"):
        kind = _INTGEMM8
        # The whole tensor has one multiplier, with which the largest value becomes 127.
        largest = np.abs(tensor).max().astype(np.float32)
        multiplier = np.float32(127) / largest
        values = np.rint(tensor * multiplier).astype(np.int8)
        if is_transposed:
            values = values.T
        data = values.tobytes()
        data += multiplier.astype("<f4").tobytes()
    else:
        kind = _FLOAT32
        data = tensor.astype("<f4").tobytes()

    padding = bytes(-len(data) % _ALIGNMENT)
    return _Blob(
        name,
        kind,
        shape=tensor.shape,
        data=data + padding,
    )


def _format_settings(settings: dict[str, str]) -> str:
    """Returns a YAML mapping, the inverse of :func:`_parse_settings`."""
    text = ""
    for name in sorted(settings):
        text += f"{name}: {settings[name] or _EMPTY}\n"
    return text


def _parse_settings(text: str) -> dict[str, str]:
    """Returns the scalars of a YAML mapping, and the items of its lists, joined by spaces."""
    found: dict[str, str] = {}
    last = ""

    for line in text.splitlines():
        match = _SETTING.fullmatch(line)
        if match:
            last = match[1]
            value = match[2] or ""
            found[last] = value.strip("\"'")
            continue

        is_item = line.lstrip().startswith("- ")
        if is_item and last:
            item = line.lstrip()[2:].strip()
            found[last] = f"{found[last]} {item}".strip()
    return found


class Shortlist(NamedTuple):
    """Likely target tokens of each source token, in Bergamot's ids.

    Attributes:
      num_common: Number of the first ids of the target vocabulary, which are likely for every
        source.
      offsets: The targets of source token i are ``tokens[offsets[i]:offsets[i + 1]]``.
      tokens: Target tokens.
    """

    num_common: int
    offsets: Int[np.ndarray, " _"]
    tokens: Int[np.ndarray, " E"]


def read_shortlist(path: pathlib.Path) -> Shortlist:
    """Reads a shortlist, such as ``lex.50.50.ende.s2t.bin``; refuses a damaged one."""
    cursor = _Cursor(path)
    magic, checksum = cursor.numbers(2)
    if magic != _SHORTLIST_MAGIC:
        raise cursor.error("does not begin as a shortlist")

    start = cursor.position
    num_common, _, num_offsets, num_tokens = cursor.numbers(4)
    offsets = cursor.array(num_offsets, "<u8").astype(np.int64)
    tokens = cursor.array(num_tokens, "<u4").astype(np.int64)

    is_whole = cursor.position == len(cursor.content)
    if not is_whole or _checksum(cursor.content[start:]) != checksum:
        raise cursor.error("has another checksum: it is damaged")

    end_fits = num_offsets > 0 and offsets[-1] == num_tokens
    decrease = np.diff(offsets) < 0
    if not end_fits or decrease.any():
        raise cursor.error("has offsets that do not fit its tokens")
    return Shortlist(num_common, offsets, tokens)


def write_shortlist(path: pathlib.Path, shortlist: Shortlist) -> None:
    """Writes a shortlist in the format of :func:`read_shortlist`."""
    num_common, offsets, tokens = shortlist
    longest = np.diff(offsets).max(initial=0)
    sizes = [num_common, longest, len(offsets), len(tokens)]
    body = np.array(sizes, "<u8").tobytes()
    body += offsets.astype("<u8").tobytes()
    body += tokens.astype("<u4").tobytes()

    start = struct.pack("<2Q", _SHORTLIST_MAGIC, _checksum(body))
    write_file(path, start + body)


def _checksum(content: bytes) -> int:
    """Returns Marian's hash of whole 64-bit words."""
    num_words = len(content) // 8
    whole_words = content[: 8 * num_words]

    total = 0
    for word in np.frombuffer(whole_words, "<u8").tolist():
        mixed = word + 0x9E3779B9 + (total << 6) + (total >> 2)
        total ^= mixed % 2**64
    return total
