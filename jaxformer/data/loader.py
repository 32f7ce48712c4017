"""From a batch plan to batches: grain reads ahead in threads, in the order of the plan."""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import grain

from jaxformer.data.batch import Batch, make_batch
from jaxformer.data.plan import BatchPlan, Shape
from jaxformer.data.store import TokenStore

T = TypeVar("T")

# Laying out a batch takes a few milliseconds: two threads hide it, more would only wait.
_READ = grain.ReadOptions(num_threads=2, prefetch_buffer_size=8)


def load_batches(
    store: TokenStore,
    plan: BatchPlan,
    *,
    start: int = 0,
    stop: int | None = None,
    row_multiple: int = 1,
    parts: Sequence[int] = (0,),
    part_count: int = 1,
) -> Iterator[Batch]:
    """Global batches ``start``, ``start + 1``, ... of the plan; of each some parts of its rows.

    Args:
      store: What the plan's example ids refer to.
      plan: Which examples are in which batch.
      start: The first batch; resuming means to pass the number of batches that were used.
      stop: The batch to end before; None goes on for ever.
      row_multiple: Empty rows are added until the rows of a global batch divide by this.
      parts: Which parts of the rows this process needs, ascending; it reads nothing else.
      part_count: How many equal, contiguous parts the rows of each batch have.

    Raises:
      ValueError: The rows cannot be parted equally.
    """
    if row_multiple % part_count:
        raise ValueError(
            f"row_multiple must be a multiple of the {part_count} parts: got {row_multiple}"
        )

    def read(n: int) -> Batch:
        (count, src_length, tgt_length), rows = plan.rows(n)
        share = round_up(count, row_multiple) // part_count
        local = [row for part in parts for row in rows[part * share : (part + 1) * share]]
        pairs = [[store[example] for example in row] for row in local]
        return make_batch(pairs, (len(parts) * share, src_length, tgt_length))

    return prefetch(read, start, stop)


def prefetch(batch_of: Callable[[int], T], start: int = 0, stop: int | None = None) -> Iterator[T]:
    """Yields ``batch_of(start)``, ``batch_of(start + 1)`` and so on, made ahead in threads.

    >>> list(prefetch(lambda n: n * n, start=2, stop=5))
    [4, 9, 16]

    Args:
      batch_of: A pure function of the number of a batch.
      start: The first batch.
      stop: The batch to end before; None goes on for ever.
    """
    numbers = grain.MapDataset.range(start, sys.maxsize if stop is None else stop)
    return iter(numbers.map(batch_of).to_iter_dataset(_READ))


def padded_shapes(plan: BatchPlan, row_multiple: int) -> tuple[Shape, ...]:
    """Every shape of a global batch of :func:`load_batches`: rows, source and target length."""
    return tuple((round_up(rows, row_multiple), src, tgt) for rows, src, tgt in plan.shapes)


def round_up(count: int, multiple: int) -> int:
    """The least multiple that is no less than ``count``."""
    return -(-count // multiple) * multiple
