"""Length buckets: groups of lengths that share batches, with the least padding."""

import numpy as np

# The cost of buckets that cannot be; the sum of two does not overflow.
_INFINITE = np.iinfo(np.int64).max // 2


def bucket_edges(
    lengths: np.ndarray,
    tokens_per_batch: int,
    max_buckets: int = 12,
) -> list[int]:
    """Returns the bucket edges that need the fewest batches, by dynamic programming.

    Bucket k takes the examples longer than edge k - 1 and at most as long as edge k, and pads them
    to edge k. Edges are multiples of 8, which are efficient on accelerators. They are multiples of
    4, 2 or 1 if multiples of 8 would cost over 1% more. The last edge is the longest length itself.
    There are at most ``max_buckets``, fewer if more would save less than 1%; none is empty.
    ``lengths`` has the length of the longer side of each example, at most ``tokens_per_batch``.
    """
    histogram = np.bincount(lengths)

    any_edges = _best_edges(histogram, tokens_per_batch, 1, max_buckets)
    optimum, _ = any_edges[-1]
    for multiple in (8, 4, 2, 1):
        choices = _best_edges(histogram, tokens_per_batch, multiple, max_buckets)
        for cost, edges in choices:
            if cost <= 1.01 * optimum:
                return edges

    raise AssertionError("multiples of 1 include the optimum")


def _best_edges(
    histogram: np.ndarray,
    tokens_per_batch: int,
    multiple: int,
    max_buckets: int,
) -> list[tuple[int, list[int]]]:
    """Returns the least cost, and the edges that have it, for 1, 2, ... buckets."""
    longest = len(histogram) - 1
    multiples = np.arange(0, longest, multiple)
    edges = np.append(multiples, longest)
    costs = _costs(histogram, edges, tokens_per_batch)

    # The least cost of all examples up to each edge, and for each round the edge before it.
    total = np.full(len(edges), _INFINITE)
    total[0] = 0
    previous = []

    results = []
    for _ in range(max_buckets):
        through = total[:, None] + costs
        previous.append(through.argmin(axis=0))
        total = through.min(axis=0)

        # Follows the best edges back from the longest length.
        chosen = []
        last = len(edges) - 1
        for best in reversed(previous):
            chosen.append(int(edges[last]))
            last = best[last]

        least_cost = int(total[-1])
        edges_of_buckets = sorted({edge for edge in chosen if edge})
        results.append((least_cost, edges_of_buckets))

    return results


def _costs(
    histogram: np.ndarray,
    edges: np.ndarray,
    tokens_per_batch: int,
) -> np.ndarray:
    """Returns the tokens computed for a bucket from edge i to edge j, counting full batches.

    A bucket with few examples thus costs a whole batch, and exists only if it saves one.
    """
    up_to = np.cumsum(histogram)[edges]
    examples = up_to[None, :] - up_to[:, None]

    rows = tokens_per_batch // np.maximum(edges, 1)
    batches = -(-examples // rows)
    costs = batches * rows * edges

    is_bucket = edges[:, None] <= edges[None, :]
    return np.where(is_bucket, costs, _INFINITE)
