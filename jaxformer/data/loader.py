"""Loads the batches of a plan: grain reads ahead in threads, in the order of the plan."""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import grain

from jaxformer.data.batch import Shape, make_batch
from jaxformer.data.plan import BatchPlan

T = TypeVar("T")

# Making a batch takes a few milliseconds. Two threads hide this; more would only wait.
_READ = grain.ReadOptions(num_threads=2, prefetch_buffer_size=8)


@runtime_checkable  # for the checks of types in tests
class Store(Protocol):
    """The examples of a split, by their ids."""

    def __getitem__(self, index: int, /) -> Any: ...


def load_batches(
    store: Store,
    plan: BatchPlan,
    *,
    make: Callable[[Sequence[Sequence[Any]], Shape], T] = make_batch,
    start: int = 0,
    stop: int | None = None,
    row_multiple: int = 1,
    local_shards: Sequence[int] = (0,),
    shard_count: int = 1,
) -> Iterator[T]:
    """Yields the batches of the plan from ``start`` to ``stop``, or forever if it is None.

    Empty rows are added until the rows of a global batch are divisible by ``row_multiple``. They
    are in ``shard_count`` equal shards; this process reads the shards ``local_shards``, ascending.
    """
    assert row_multiple % shard_count == 0, "each shard has as many rows"

    def read(n: int) -> T:
        shape, rows = plan.rows(n)
        count, src_length, tgt_length = shape
        shard_size = round_up(count, row_multiple) // shard_count

        local_rows = []
        for shard in local_shards:
            for row in rows[shard * shard_size : (shard + 1) * shard_size]:
                local_rows.append([store[example] for example in row])

        shape = (len(local_shards) * shard_size, src_length, tgt_length)
        return make(local_rows, shape)

    return prefetch(read, start, stop)


def prefetch(
    batch_of: Callable[[int], T],
    start: int = 0,
    stop: int | None = None,
) -> Iterator[T]:
    """Yields ``batch_of(start)``, ``batch_of(start + 1)`` and so on, prepared in threads.

    >>> list(prefetch(lambda n: n * n, start=2, stop=5))
    [4, 9, 16]

    Args:
      batch_of: A pure function of the number of a batch.
      start: First batch.
      stop: Batch to stop before; None yields batches forever.
    """
    end = sys.maxsize if stop is None else stop
    numbers = grain.MapDataset.range(start, end)
    return iter(numbers.map(batch_of).to_iter_dataset(_READ))


def round_up(count: int, multiple: int) -> int:
    """Returns the least multiple of ``multiple`` that is at least ``count``."""
    return -(-count // multiple) * multiple
