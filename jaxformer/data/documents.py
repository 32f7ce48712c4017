"""A text as documents, read and encoded in pieces: lists of its lines or ids would be larger."""

import hashlib
import pathlib
import re
from collections.abc import Iterator

import numpy as np
from jaxtyping import Int, Integer

from jaxformer.data.tokenizer import EOS, PAD, Vocabulary
from jaxformer.errors import UserError
from jaxformer.files import explain_read_errors

_PIECE = 1 << 18  # characters


def lines_of(text: str) -> Iterator[str]:
    r"""Yields the lines of a text without ``\n``, like ``text.split("\n")``."""
    return (line[0] for line in re.finditer("^.*$", text, re.MULTILINE))


def split_documents(
    text: str, separator: str, span: range | None = None, size: int = _PIECE
) -> Iterator[str | None]:
    r"""Yields pieces of about ``size`` characters that end with lines; None ends a document.

    ``separator`` is the line between documents, "" if they have no ends; ``span`` has characters.

    >>> list(split_documents("a\nb\n---\nc\n---\n", "---"))
    ['a\nb\n', None, 'c\n', None, '']
    """
    pattern = re.compile(rf"^{re.escape(separator)}\r?(?:\n|\Z)", re.M)
    span = span or range(len(text))
    start = span.start
    while start < span.stop:
        end = text.find("\n", start + size, span.stop) + 1 or span.stop
        first, *others = pattern.split(text[start:end]) if separator else [text[start:end]]
        yield first
        for part in others:
            yield from (None, part)
        start = end


def encode_documents(
    text: str, tokenizer: Vocabulary, separator: str, span: range
) -> Integer[np.ndarray, " N"]:
    """Returns token ids of the smallest dtype, with EOS after each document of the text."""
    dtype, ids = np.min_scalar_type(tokenizer.vocab_size - 1), bytearray()
    size = _PIECE if tokenizer.keeps_lines else len(text)
    for piece in split_documents(text, separator, span, size):
        ids += np.asarray([EOS] if piece is None else tokenizer.encode(piece), dtype).tobytes()
    end = np.asarray(EOS, dtype).tobytes()
    if separator and span.stop == len(text) and not ids.endswith(end):
        ids += end
    return np.frombuffer(ids, dtype)


def text_sha256(text: str) -> str:
    """Returns the SHA-256 of the UTF-8 bytes of a text, hexadecimal."""
    digest = hashlib.sha256()
    for start in range(0, len(text), _PIECE):
        digest.update(text[start : start + _PIECE].encode())
    return digest.hexdigest()


def map_token_ids(path: pathlib.Path, dtype: str, ids: Int[np.ndarray, " V"]) -> np.memmap:
    """Opens a file of token ids without a header; ``ids`` are the tokenizer's for each of them."""
    with explain_read_errors(path):
        bytes_, size = path.stat().st_size, np.dtype(dtype).itemsize
        if bytes_ < size or bytes_ % size:
            raise UserError(f"{path}: expected token ids as {dtype}, got {bytes_} bytes")
        found = np.memmap(path, np.dtype(dtype).newbyteorder("<"), mode="r")
    if (largest := int(found.max())) >= len(ids):
        raise UserError(
            f"{path}: expected token ids below {len(ids)}, the size of the vocabulary, as {dtype}: "
            f"got {largest}; see data.token_dtype and data.tokenizer"
        )
    if ids[int(found.min())] == PAD:
        raise UserError(f"{path}: expected no token {int(found.min())}, which stands for padding")
    return found
