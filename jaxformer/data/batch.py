"""Batches: sentence pairs arranged in rows of fixed length."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int32

from jaxformer.data.tokenizer import BOS, EOS, PAD

TokenIds = Sequence[int] | np.ndarray
TokenPair = tuple[TokenIds, TokenIds]
Shape = tuple[int, int, int]  # rows, and lengths of sources and targets


class Batch(NamedTuple):
    """Rows of sentence pairs, int32. A row holds one pair, or several if it is packed.

    The loader makes NumPy arrays; on devices the same tuple holds JAX arrays.

    Attributes:
      src: Source tokens and EOS.
      src_segments: Number of the token's pair within its row, from 1; 0 is padding.
      src_positions: Position of a token in its own sentence, from 0.
      tgt_in: Decoder input: BOS and the target tokens, ``tgt_out`` shifted right by one position.
      tgt_out: Decoder output: the target tokens and EOS.
      tgt_segments: Like ``src_segments``; a target attends to the source with the same number.
      tgt_positions: Like ``src_positions``.
    """

    src: Int32[Any, "B S"]
    src_segments: Int32[Any, "B S"]
    src_positions: Int32[Any, "B S"]
    tgt_in: Int32[Any, "B T"]
    tgt_out: Int32[Any, "B T"]
    tgt_segments: Int32[Any, "B T"]
    tgt_positions: Int32[Any, "B T"]


def make_batch(
    rows: Sequence[Sequence[TokenPair]],
    shape: tuple[int, int, int],
    source_end: int = EOS,
) -> Batch:
    """Arranges pairs, ids without BOS and EOS, in padded rows.

    ``shape`` has rows, source length and target length. Rows that do not fit raise ``ValueError``.
    Some tokenizers have another last token of sources, ``source_end``.

    >>> batch = make_batch([[([7, 8], [9])]], (1, 4, 3))
    >>> batch.src.tolist(), batch.tgt_in.tolist(), batch.tgt_out.tolist()
    ([[7, 8, 1, 0]], [[2, 9, 0]], [[9, 1, 0]])
    """
    count, src_length, tgt_length = shape
    if len(rows) > count:
        raise ValueError(f"expected at most {count} rows in a batch of shape {shape}: {len(rows)}")

    src = _lay_out(rows, 0, (count, src_length), end_id=source_end)
    tgt = _lay_out(rows, 1, (count, tgt_length), end_id=EOS)

    # Each sentence begins with BOS instead of the EOS of the sentence before it.
    tgt_in = np.roll(tgt.tokens, 1, axis=1)
    is_first = tgt.positions == 0
    is_padding = tgt.segments == 0
    tgt_in[is_first] = BOS
    tgt_in[is_padding] = PAD

    return Batch(
        src=src.tokens,
        src_segments=src.segments,
        src_positions=src.positions,
        tgt_in=tgt_in,
        tgt_out=tgt.tokens,
        tgt_segments=tgt.segments,
        tgt_positions=tgt.positions,
    )


def isolate_pair(batch: Batch, row: int, segment: int) -> Batch:
    """Returns a batch of one row with a single pair of a packed row, at its position.

    >>> batch = make_batch([[([7], [9]), ([8], [5])]], (1, 4, 4))
    >>> isolate_pair(batch, 0, 2).src.tolist(), isolate_pair(batch, 0, 2).tgt_in.tolist()
    ([[0, 0, 8, 1]], [[0, 0, 2, 5]])
    """
    fields = [np.asarray(field[row : row + 1]) for field in batch]
    one_row = Batch(*fields)
    in_src = one_row.src_segments == segment
    in_tgt = one_row.tgt_segments == segment

    return Batch(
        src=np.where(in_src, one_row.src, 0),
        src_segments=np.where(in_src, one_row.src_segments, 0),
        src_positions=np.where(in_src, one_row.src_positions, 0),
        tgt_in=np.where(in_tgt, one_row.tgt_in, 0),
        tgt_out=np.where(in_tgt, one_row.tgt_out, 0),
        tgt_segments=np.where(in_tgt, one_row.tgt_segments, 0),
        tgt_positions=np.where(in_tgt, one_row.tgt_positions, 0),
    )


class _Side(NamedTuple):
    """Fields of a batch for one side."""

    tokens: np.ndarray  # with the end of each sentence
    segments: np.ndarray
    positions: np.ndarray


def _lay_out(
    rows: Sequence[Sequence[TokenPair]],
    side: int,
    shape: tuple[int, int],
    end_id: int,
) -> _Side:
    """Lays out one side of the pairs: 0 source, 1 target."""
    tokens = np.full(shape, PAD, np.int32)
    segments = np.zeros_like(tokens)
    positions = np.zeros_like(tokens)

    _, max_length = shape
    counting = np.arange(max_length, dtype=np.int32)

    for number, row in enumerate(rows):
        start = 0
        for segment, pair in enumerate(row, start=1):
            ids = pair[side]
            last = start + len(ids)
            end = last + 1
            if end > max_length:
                raise ValueError(f"expected rows of at most {max_length} tokens: got {end} or more")

            length = end - start
            tokens[number, start:last] = ids
            tokens[number, last] = end_id
            segments[number, start:end] = segment
            positions[number, start:end] = counting[:length]
            start = end

    return _Side(tokens, segments, positions)
