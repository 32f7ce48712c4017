"""Batches of arrays in memory, for tasks of your own."""

import functools
from collections.abc import Callable, Iterator, Mapping

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int, PyTree, Shaped

from jaxformer.data.loader import prefetch, round_up
from jaxformer.errors import UserError
from jaxformer.training.mesh import make_mesh
from jaxformer.training.placement import BatchShards, replicated
from jaxformer.training.task import Loss
from jaxformer.training.validation import evaluate_loss

Arrays = Mapping[str, Shaped[np.ndarray, "..."]]
REAL = "real"  # name of the array that batches have beside the given ones


def epochs(
    arrays: Arrays,
    rows: int,
    seed: int,
    *,
    start: int = 0,
    shards: BatchShards | None = None,
) -> Iterator[dict[str, np.ndarray]]:
    """Yields batches of the rows of arrays, each row once in every epoch, forever.

    A batch is a pure function of its number, so that a run resumes exactly. The order of the rows
    changes with each epoch. If their number is not divisible by ``rows``, a batch may have the last
    rows of one epoch and the first of the next.

    >>> batches = epochs({"x": np.arange(3)}, rows=2, seed=0)
    >>> [next(batches)["x"].tolist() for _ in range(3)]
    [[2, 0], [1, 2], [0, 1]]

    Each batch also has "real", bool [B]. It is False for copies of rows that only make the number
    of rows divisible by the number of shards; a loss must not count them.

    Args:
      arrays: Arrays by name, with the same number of rows along their first axes. They may be
        memory-mapped.
      rows: Number of rows of a global batch.
      seed: Seed of the order.
      start: Number of the first batch; see :meth:`Task.batches <jaxformer.Task.batches>`.
      shards: Batch shards of the mesh; None for one device.

    Raises:
      UserError: The arrays have different numbers of rows, or none, or one is named "real".
    """
    arrays, count = _check_arrays(arrays, rows)

    def batch_of(number: int) -> dict[str, np.ndarray]:
        numbers = row_numbers(number, count, rows, seed=seed)
        return _take(arrays, numbers, rows, shards=shards)

    return prefetch(batch_of, start)


def evaluate_arrays(
    loss: Loss,
    params: PyTree,
    arrays: Arrays,
    rows: int,
    mesh: Mesh | None = None,
    check_stop: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Computes the means of a loss over all rows of arrays, on any number of devices.

    Batches are as from :func:`epochs`, but in order. The last one is padded to the size of the
    others with rows that are not "real".

    Args:
      loss: Returns sums over a batch; see :meth:`Task.loss <jaxformer.Task.loss>`.
      params: Parameters; on the devices of the mesh if it is given, as in ``Task.evaluate``.
      arrays: Arrays by name, with the same number of rows.
      rows: Number of rows of a batch.
      mesh: Mesh from :func:`~jaxformer.make_mesh`; by default, all devices.
      check_stop: Called before each batch.

    Returns:
      The values of :func:`~jaxformer.evaluate_loss`.

    Raises:
      UserError: As in :func:`epochs`.
    """
    arrays, count = _check_arrays(arrays, rows)
    if mesh is None:
        mesh = make_mesh()
        params = jax.device_put(params, replicated(mesh))
    shards = BatchShards.of(mesh)

    def batches() -> Iterator[dict[str, np.ndarray]]:
        for start in range(0, count, rows):
            end = min(start + rows, count)
            yield _take(
                arrays,
                np.arange(start, end),
                rows,
                shards=shards,
            )

    return evaluate_loss(
        loss,
        params,
        batches(),
        mesh=mesh,
        check_stop=check_stop,
    )


def row_numbers(
    number: int,
    count: int,
    rows: int,
    seed: int,
) -> Int[np.ndarray, " B"]:
    """Returns the numbers of the rows in a batch of :func:`epochs`.

    Args:
      number: Number of the batch.
      count: Number of rows of the arrays.
      rows: Number of rows of a batch.
      seed: Seed of the order.
    """
    # Places of the batch's rows in the sequence of all epochs, one after another.
    first_place = number * rows
    places = np.arange(first_place, first_place + rows)
    epoch_of_place = places // count

    chosen = []
    first_epoch = epoch_of_place[0]
    last_epoch = epoch_of_place[-1]
    for epoch in range(first_epoch, last_epoch + 1):
        is_in_epoch = epoch_of_place == epoch
        places_in_epoch = places[is_in_epoch] % count
        order = _order(count, seed, epoch)
        chosen.append(order[places_in_epoch])
    return np.concatenate(chosen)


@functools.lru_cache(maxsize=2)
def _order(count: int, seed: int, epoch: int) -> Int[np.ndarray, " N"]:
    generator = np.random.default_rng((seed, epoch))
    return generator.permutation(count)


def _take(
    arrays: Arrays,
    numbers: Int[np.ndarray, " N"],
    rows: int,
    shards: BatchShards | None,
) -> dict[str, np.ndarray]:
    """Returns a batch of the numbered rows, padded to ``rows``, and to a multiple of the shards."""
    size = rows
    if shards is not None:
        size = round_up(rows, shards.row_multiple)

    # Copies of real rows, since a loss may be NaN, or have NaN gradients, for rows of zeros.
    padded = np.resize(numbers, size)
    batch = {name: array[padded] for name, array in arrays.items()}
    batch[REAL] = np.arange(size) < len(numbers)

    if shards is None:
        return batch
    return shards.local(batch)


def _check_arrays(arrays: Arrays, rows: int) -> tuple[Arrays, int]:
    """Returns the arrays as NumPy arrays, and their number of rows."""
    if not isinstance(arrays, Mapping):
        raise _names_error(type(arrays))
    if not arrays or REAL in arrays:
        raise _names_error(f"the names {', '.join(arrays)}")

    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    counts = {name: _row_count(array) for name, array in arrays.items()}

    has_one_count = len(set(counts.values())) == 1
    has_rows = all(counts.values())
    if not (has_one_count and has_rows):
        described = [f"{name} with {count:,}" for name, count in counts.items()]
        found = ", ".join(described)
        raise UserError(f"expected arrays with the same number of rows, at least one: got {found}")

    if rows < 1:
        raise UserError(f"expected at least one row in a batch: got rows={rows}")
    (count,) = set(counts.values())
    return arrays, count


def _names_error(found: object) -> UserError:
    return UserError(f'expected arrays by name, none of them named "{REAL}": got {found}')


def _row_count(array: np.ndarray) -> int:
    if array.ndim == 0:
        return 0
    return len(array)
