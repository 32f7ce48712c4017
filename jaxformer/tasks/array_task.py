"""Base of the tasks whose examples are arrays in memory: their batches, and their loss."""

from collections.abc import Iterator, Mapping, Sequence

import jax
from jax.sharding import Mesh
from jaxtyping import PyTree

from jaxformer.config import Config
from jaxformer.data.loader import round_up
from jaxformer.tasks.token_task import NetworkTask
from jaxformer.training.arrays import REAL, Arrays, epochs, evaluate_arrays, row_numbers
from jaxformer.training.placement import BatchShards
from jaxformer.training.task import CheckStop


class ArrayTask(NetworkTask):
    """Trains on arrays, each with a row for an example, and validates with the loss.

    A subclass reads the arrays of both splits.
    """

    def __init__(
        self,
        config: Config,
        train: Arrays,
        valid: Arrays,
        *,
        rows: int,
    ) -> None:
        """Takes the arrays of both splits by name, and the number of rows of a global batch."""
        self.config = config
        self._train_arrays = train
        self._valid_arrays = valid
        self._rows = rows

    def batches(self, start: int, shards: BatchShards) -> Iterator[PyTree]:
        """Yields examples in the order of :meth:`example_ids`, prepared in threads."""
        return epochs(
            self._train_arrays,
            self._rows,
            self.config.training.seed,
            start=start,
            shards=shards,
        )

    def example_ids(self, number: int) -> Sequence[int]:
        """Returns the numbers of the examples of a batch, each once in every epoch."""
        first, *_ = self._train_arrays.values()
        numbers = row_numbers(
            number,
            len(first),
            self._rows,
            seed=self.config.training.seed,
        )
        return numbers.tolist()

    def evaluate(
        self,
        params: PyTree,
        mesh: Mesh,
        check_stop: CheckStop,
    ) -> dict[str, float]:
        return evaluate_arrays(
            self.loss,
            params,
            self._valid_arrays,
            rows=self._rows,
            mesh=mesh,
            check_stop=check_stop,
        )


def abstract_rows(
    rows: int,
    shards: BatchShards,
    example: Mapping[str, jax.ShapeDtypeStruct],
) -> PyTree:
    """Returns the shapes and dtypes of a batch of so many rows, given an example."""
    size = round_up(rows, shards.row_multiple)
    batch = {}
    for name, array in example.items():
        batch[name] = jax.ShapeDtypeStruct((size, *array.shape), array.dtype)
    batch[REAL] = jax.ShapeDtypeStruct((size,), bool)
    return batch
