"""The protocol between the training loop and what it trains."""

import abc
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import jax
from jax.sharding import Mesh
from jaxtyping import Array, Int, PyTree

from jaxformer.nn.parameters import describe
from jaxformer.training.mesh import BatchShards
from jaxformer.workdir import Workdir

# Sums over the rows of a batch, by name. "loss" is minimized, after it has been divided by "count":
# both are summed over all devices and micro-batches first. The others are only reported, divided by
# "count" too: a sum "nll" of negative log likelihoods also as "perplexity", and a sum "tokens" as
# "tokens_per_second" instead.
Sums: TypeAlias = dict[str, Array]


class Randomness(NamedTuple):
    """Random numbers that do not depend on how many devices share a batch.

    Attributes:
      key: Of the step, the same on every device.
      row_ids: Numbers of the rows in the global batch. What is random in a row is drawn from
        ``jax.random.fold_in(key, row_id)``, so that it is the same on any number of devices.
    """

    key: Array
    row_ids: Int[Array, " B"]


# ``loss(params, batch, randomness)``; randomness is None while evaluating.
Loss: TypeAlias = Callable[[PyTree, PyTree, Randomness | None], Sums]


@runtime_checkable
class Task(Protocol):
    """A model, its data and its evaluation: all that :func:`~jaxformer.fit` trains.

    Derive from this class and write the four abstract methods; the others have defaults. What they
    return must depend on nothing but their arguments and on what :meth:`identity` hashes, so that a
    run resumes exactly and computes the same on any number of devices.

    Attributes:
      best: Name of the value of :meth:`evaluate` that decides which checkpoint is the best one, and
        whether that is its least ("min") or greatest ("max").
    """

    best: tuple[str, Literal["min", "max"]] = ("loss", "min")

    @abc.abstractmethod
    def init(self, key: Array) -> PyTree:
        """Creates the parameters: a dict, or any pytree, of arrays."""
        ...

    @abc.abstractmethod
    def loss(self, params: PyTree, batch: PyTree, randomness: Randomness | None) -> Sums:
        """Sums the loss, and what it counts, over the rows of a batch or of a part of it.

        Args:
          params: As :meth:`init` created them.
          batch: Rows of a global batch.
          randomness: For dropout and the like; None while evaluating.

        Returns:
          Scalars: "loss", "count", and any others. Sums, not means: rows of uneven size then count
          alike on one device and on many.
        """
        ...

    @abc.abstractmethod
    def batches(self, start: int, shards: BatchShards) -> Iterator[PyTree]:
        """Yields batches ``start``, ``start + 1`` and so on, a pure function of their numbers.

        A batch is a pytree of NumPy arrays with rows along their first axes. The rows of a global
        batch are divisible by ``shards.row_multiple``; of them a process yields its own, which are
        all of them unless there are several hosts: ``shards.local(batch)`` takes them.
        :func:`~jaxformer.prefetch` makes batches in threads, ahead of their use.
        """
        ...

    @abc.abstractmethod
    def identity(self) -> dict[str, str]:
        """Returns hashes of all that the task is made from, by name: data, vocabulary, options.

        A run is resumed only with the same ones.
        """
        ...

    def evaluate(
        self, params: PyTree, mesh: Mesh, check_stop: Callable[[], None]
    ) -> dict[str, float]:
        """Computes named values, one of them :attr:`best`; empty for no evaluation.

        Args:
          params: On the devices of the mesh. :func:`~jaxformer.evaluate_loss` takes them so.
          mesh: The mesh of the run.
          check_stop: To be called now and then: it raises when the run has been asked to stop, and
            nobody waits for the values.
        """
        return {}

    def describe(self) -> PyTree:
        """Returns a :class:`~jaxformer.nn.ParameterInfo` or None for each parameter.

        It names the axes that a mesh may split: "vocab", "d_model", "heads" and "d_ff". The default
        is what parameters were created with by :func:`~jaxformer.nn.parameter`, as all of this
        package's parts create theirs; every device has a whole copy of the others. Rows of a table
        that is split can be taken by number only with :func:`~jaxformer.nn.embed`, or after
        ``jax.lax.with_sharding_constraint(table, jax.sharding.PartitionSpec())``, or XLA aborts on
        meshes where "data" and "fsdp" are both above 1 (jax 0.10.2).
        """
        return describe(self.init, jax.random.key(0))

    def shapes(self, shards: BatchShards) -> Sequence[PyTree]:
        """Returns every shape of a global batch, as pytrees of ``jax.ShapeDtypeStruct``.

        The step is compiled for them before the first step; another shape is then an error. Empty:
        compile for each shape when it comes.
        """
        return ()

    def save(self, folder: Workdir) -> None:
        """Writes files of its own into a new workdir, such as a tokenizer."""

    def summary(self) -> str:
        """Returns what the log says about the data when a run starts; may be several lines."""
        return ""

    def describe_batch(self, step: int) -> str:
        """Returns what the log says about batch ``step`` if its update was not finite."""
        return ""
