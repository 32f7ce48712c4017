"""Length buckets: which lengths share a batch, so that the least padding is computed."""

import numpy as np


def bucket_edges(lengths: np.ndarray, tokens_per_batch: int, most: int = 12) -> list[int]:
    """The buckets that fill the fewest batches, found by dynamic programming.

    Bucket k takes the examples whose length is over edge k - 1 and at most edge k, and pads them to
    edge k. Edges are multiples of 8, which accelerators like, or of 4, 2 or 1 where a multiple of
    8 would cost over 1% more. The last one is the longest length itself.

    Args:
      lengths: Of every example, the longer side in tokens.
      tokens_per_batch: Upper limit of tokens in a batch; at least the longest length.
      most: Buckets at most. Fewer are taken where more would save less than 1%.

    Returns:
      The edges, ascending; every bucket has an example.
    """
    histogram = np.bincount(lengths)
    optimum = _best_edges(histogram, tokens_per_batch, 1, most)[-1][0]
    for multiple in (8, 4, 2, 1):
        for cost, edges in _best_edges(histogram, tokens_per_batch, multiple, most):
            if cost <= 1.01 * optimum:
                return edges
    raise AssertionError("multiples of 1 include the optimum")


def _best_edges(
    histogram: np.ndarray, tokens_per_batch: int, multiple: int, most: int
) -> list[tuple[int, list[int]]]:
    """For 1, 2, ... buckets, the least cost and the edges that have it."""
    longest = len(histogram) - 1
    edges = np.append(np.arange(0, longest, multiple), longest)
    costs = _costs(histogram, edges, tokens_per_batch)
    total = np.full(len(edges), np.iinfo(np.int64).max // 2)
    total[0] = 0
    previous, results = [], []
    for _ in range(most):
        through = total[:, None] + costs
        previous.append(through.argmin(axis=0))
        total = through.min(axis=0)
        chosen, last = [], len(edges) - 1
        for best in reversed(previous):
            chosen.append(int(edges[last]))
            last = best[last]
        results.append((int(total[-1]), sorted({edge for edge in chosen if edge})))
    return results


def _costs(histogram: np.ndarray, edges: np.ndarray, tokens_per_batch: int) -> np.ndarray:
    """Tokens computed for a bucket from edge i to edge j: its batches, counted as full.

    So a bucket of few examples costs a whole batch, and is made only where it saves one.
    """
    up_to = np.cumsum(histogram)[edges]
    examples = up_to[None, :] - up_to[:, None]
    rows = tokens_per_batch // np.maximum(edges, 1)
    costs = -(-examples // rows) * rows * edges
    return np.where(edges[:, None] <= edges[None, :], costs, np.iinfo(np.int64).max // 2)
