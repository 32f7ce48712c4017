"""Packing: several sentence pairs in one row, so that hardly any padding is computed."""

import numpy as np


def pack(
    src_lengths: np.ndarray, tgt_lengths: np.ndarray, row_length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows filled with pairs so that the sources, and the targets, fit into ``row_length``.

    Pairs of the same two lengths are alike here, so it is lengths that are packed, not pairs: one
    way to fill a row is found and used as often as there are pairs for it. That takes seconds for
    millions of pairs. A row begins with the largest pair left and goes on with the pair that best
    fits what is free on both sides, the largest product of lengths and free places.

    Args:
      src_lengths: Tokens of every source, EOS included.
      tgt_lengths: Tokens of every target, EOS included.
      row_length: Tokens that a row holds on either side; at least the longest length.

    Returns:
      ``slots``: for every place of every row the lengths of the pair to go there, as
      :func:`length_class`; and ``row_starts``: the first slot of every row, and their end.
    """
    side = row_length + 1
    classes = length_class(src_lengths, tgt_lengths, row_length)
    left = np.bincount(classes, minlength=side * side).reshape(side, side)
    slots, sizes = [], []
    while left.any():
        row = _fill_row(left)
        pairs, counts = np.unique(row, return_counts=True)
        times = int((left.flat[pairs] // counts).min())
        left.flat[pairs] -= times * counts
        slots.append(np.tile(row, times))
        sizes.append(np.full(times, len(row)))
    row_starts = np.concatenate([[0], np.cumsum(np.concatenate(sizes))])
    return np.concatenate(slots), row_starts


def length_class(src_lengths: np.ndarray, tgt_lengths: np.ndarray, row_length: int) -> np.ndarray:
    """One number for the two lengths of a pair."""
    return np.asarray(src_lengths) * (row_length + 1) + tgt_lengths


def _fill_row(left: np.ndarray) -> list[int]:
    """The length classes of one row; ``left`` counts the pairs by source and target length."""
    left = left.copy()
    side = len(left)
    lengths = np.arange(side)
    src_free = tgt_free = side - 1
    row = []
    while True:
        window = left[: src_free + 1, : tgt_free + 1]
        fit = src_free * lengths[: src_free + 1, None] + tgt_free * lengths[: tgt_free + 1]
        fit = np.where(window, fit, -1)
        src, tgt = divmod(int(fit.argmax()), fit.shape[1])
        if fit[src, tgt] < 0:
            return row
        row.append(src * side + tgt)
        left[src, tgt] -= 1
        src_free, tgt_free = src_free - src, tgt_free - tgt
