"""Packing: several sentence pairs per row, to reduce padding."""

import numpy as np


def pack(
    src_lengths: np.ndarray,
    tgt_lengths: np.ndarray,
    row_length: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Assigns pairs to rows so that the sources, and the targets, of a row fit into ``row_length``.

    Lengths are packed, not pairs, since pairs with the same two lengths are interchangeable. Each
    row composition is found once and reused until its pairs run out, which takes seconds for
    millions of pairs. A row begins with the largest remaining pair. It continues with the pair
    that best fits the free tokens of both sides, by the inner product with its lengths.

    Returns the :func:`length_class` of the pair in every slot, row by row, and the first slot of
    every row, followed by the number of slots.
    """
    side = row_length + 1
    classes = length_class(src_lengths, tgt_lengths, row_length)
    counts_of_classes = np.bincount(classes, minlength=side * side)
    left = counts_of_classes.reshape(side, side)  # by source and target length

    slots = []
    sizes = []
    while left.any():
        row = _fill_row(left)

        # The same row is used until the pairs of one of its classes run out.
        row_classes, counts = np.unique(row, return_counts=True)
        most_times = left.flat[row_classes] // counts
        times = int(most_times.min())
        left.flat[row_classes] -= times * counts

        slots.append(np.tile(row, times))
        sizes.append(np.full(times, len(row)))

    row_sizes = np.concatenate(sizes)
    row_ends = np.cumsum(row_sizes)
    row_starts = np.concatenate([[0], row_ends])
    return np.concatenate(slots), row_starts


def length_class(
    src_lengths: np.ndarray,
    tgt_lengths: np.ndarray,
    row_length: int,
) -> np.ndarray:
    """Returns one number for the two lengths of a pair: its index in a flattened square of them."""
    side = row_length + 1
    return np.asarray(src_lengths) * side + tgt_lengths


def _fill_row(left: np.ndarray) -> list[int]:
    """Returns the length classes of one row; ``left`` counts pairs by source and target length."""
    left = left.copy()
    side = len(left)
    lengths = np.arange(side)
    src_free = side - 1
    tgt_free = side - 1

    row = []
    while True:
        src_that_fit = slice(0, src_free + 1)
        tgt_that_fit = slice(0, tgt_free + 1)

        # The inner product of the free tokens with the lengths of each pair that fits, [S, T].
        src_product = src_free * lengths[src_that_fit]
        tgt_product = tgt_free * lengths[tgt_that_fit]
        fit = src_product[:, None] + tgt_product

        is_left = left[src_that_fit, tgt_that_fit] > 0
        fit = np.where(is_left, fit, -1)

        best = int(fit.argmax())
        src, tgt = divmod(best, tgt_free + 1)
        if fit[src, tgt] < 0:
            return row

        row.append(src * side + tgt)
        left[src, tgt] -= 1
        src_free -= src
        tgt_free -= tgt
