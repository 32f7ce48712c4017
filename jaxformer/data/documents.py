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
    text: str,
    separator: str,
    span: range | None = None,
    size: int = _PIECE,
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
        # A piece ends with the first line that ends after ``size`` characters, or with the span.
        line_end = text.find("\n", start + size, span.stop)
        end = line_end + 1 or span.stop
        piece = text[start:end]

        first, *others = pattern.split(piece) if separator else [piece]
        yield first
        for part in others:
            yield None
            yield part

        start = end


def encode_documents(
    text: str,
    tokenizer: Vocabulary,
    separator: str,
    span: range,
) -> Integer[np.ndarray, " N"]:
    """Returns token ids of the smallest dtype, with EOS after each document of the text."""
    dtype = np.min_scalar_type(tokenizer.vocab_size - 1)
    end_of_document = np.asarray([EOS], dtype).tobytes()
    size = _PIECE if tokenizer.keeps_lines else len(text)

    ids = bytearray()
    for piece in split_documents(text, separator, span, size):
        if piece is None:
            ids += end_of_document
        else:
            ids += np.asarray(tokenizer.encode(piece), dtype).tobytes()

    # The last document may have no separator after it.
    is_last = span.stop == len(text)
    if separator and is_last and not ids.endswith(end_of_document):
        ids += end_of_document

    return np.frombuffer(ids, dtype)


def text_sha256(text: str) -> str:
    """Returns the SHA-256 of the UTF-8 bytes of a text, hexadecimal."""
    digest = hashlib.sha256()
    for start in range(0, len(text), _PIECE):
        digest.update(text[start : start + _PIECE].encode())
    return digest.hexdigest()


def map_token_ids(
    path: pathlib.Path,
    dtype: str,
    ids: Int[np.ndarray, " V"],
) -> np.memmap:
    """Opens a file of token ids without a header; ``ids`` are the tokenizer's for each of them."""
    size = np.dtype(dtype).itemsize
    with explain_read_errors(path):
        file_size = path.stat().st_size
        if file_size < size or file_size % size:
            raise UserError(f"{path}: expected token ids as {dtype}, got {file_size} bytes")
        found = np.memmap(path, np.dtype(dtype).newbyteorder("<"), mode="r")

    largest = int(found.max())
    if largest >= len(ids):
        raise UserError(
            f"{path}: expected token ids below {len(ids)}, the size of the vocabulary, as {dtype}: "
            f"got {largest}; see data.token_dtype and data.tokenizer"
        )

    smallest = int(found.min())
    if ids[smallest] == PAD:
        raise UserError(f"{path}: expected no token {smallest}, which stands for padding")

    return found
