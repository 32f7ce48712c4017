"""The interface between the training loop and what it trains."""

import abc
import functools
import operator
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

import jax
from jax.sharding import Mesh
from jaxtyping import Array, Int, PyTree

from jaxformer.errors import UserError
from jaxformer.nn.backend import Backend, backend
from jaxformer.nn.parameters import describe_variables
from jaxformer.runs.workdir import Workdir
from jaxformer.training.placement import BatchShards

# Sums over the rows of a batch, by name. "loss" over "count" is minimized, after both have been
# summed over all devices and micro-batches. All others are only reported, divided by "count", or by
# a count of their own if the loss returns pairs of a sum and its count. A sum "nll" of negative log
# likelihoods is reported as "perplexity", a sum "tokens" as "tokens_per_second".
Sums: TypeAlias = dict[str, Array]


class Randomness(NamedTuple):
    """Random numbers that do not depend on the number of devices.

    Attributes:
      key: Key of the step, the same on every device.
      row_ids: Numbers of the rows in the global batch. Draw the random numbers of a row from
        ``jax.random.fold_in(key, row_id)``.
    """

    key: Array
    row_ids: Int[Array, " B"]


def dropout_of(
    randomness: Randomness | None,
) -> tuple[dict[str, Any], dict[str, Array] | None]:
    """Returns dropout arguments of a model and ``rngs`` for ``apply``; None turns dropout off.

    The model takes ``deterministic`` and ``row_ids``, as all models of this package do::

        dropout, rngs = dropout_of(randomness)
        logits = model.apply({"params": params}, tokens, rngs=rngs, **dropout)
    """
    if randomness is None:
        return {"deterministic": True}, None

    dropout = {"deterministic": False, "row_ids": randomness.row_ids}
    rngs = {"dropout": randomness.key}
    return dropout, rngs


class Example(NamedTuple):
    """One example of a batch."""

    row: int  # number of its row in the global batch
    batch: PyTree  # of only this row, without other examples in the row
    text: str  # description in a report


# Task.init: creates parameters from a key.
Init: TypeAlias = Callable[[Array], PyTree]
# ``loss(params, batch, randomness)``; randomness is None while evaluating.
Loss: TypeAlias = Callable[[PyTree, PyTree, Randomness | None], Sums]
# Called from time to time by an evaluation; raises an exception if the run is to stop.
CheckStop: TypeAlias = Callable[[], None]

Result = TypeVar("Result")


def cached_by_function(make: Callable[..., Result]) -> Callable[..., Result]:
    """Caches results, for each backend; the first argument is a function of a task.

    Runs of equal functions then compile their programs once. Results for methods are not cached:
    no other task has an equal method, and the cache would keep the task's data alive.
    """

    @functools.lru_cache(maxsize=16)
    def cached(_: Backend, *arguments: Any) -> Result:
        return make(*arguments)

    @functools.wraps(make)
    def call(function: Callable, *rest: Any) -> Result:
        if hasattr(function, "__self__"):
            return make(function, *rest)
        return cached(backend(), function, *rest)

    return call


@cached_by_function
def describe_init(init: Init) -> PyTree:
    """Returns a :class:`~jaxformer.nn.ParameterInfo` in place of each array from ``init``."""
    return describe_variables(init, jax.random.key(0))


@runtime_checkable
class Task(Protocol):
    """A model, its data and its evaluation: everything that :func:`~jaxformer.fit` trains.

    Derive from this class and implement the four abstract methods. Results must depend only on the
    arguments and on what :meth:`identity` hashes. A run then resumes exactly, and computes the same
    on any number of devices, up to floating-point rounding.

    Attributes:
      best: Name of the value of :meth:`evaluate` that selects the best checkpoint, and "min" or
        "max" for its direction.
      log_formats: Formats of values of :meth:`evaluate` in the log, by name, such as
        ``{"f1": "F1 {:.2f}"}``. An empty format hides a value; the default has four digits.
      scales_loss: Multiply the loss by a dynamic scale before its gradients are computed, for
        layers that compute in float16. Their gradients are divided by it.
    """

    best: tuple[str, Literal["min", "max"]] = ("loss", "min")
    log_formats: Mapping[str, str] = types.MappingProxyType({})
    scales_loss: bool = False

    @abc.abstractmethod
    def init(self, key: Array) -> PyTree:
        """Creates the parameters: a dict, or any pytree, of arrays."""

    @abc.abstractmethod
    def loss(self, params: PyTree, batch: PyTree, randomness: Randomness | None) -> Sums:
        """Sums the loss and other quantities over the rows of a shard or of a micro-batch.

        Rows must be independent: the sums of all shards and micro-batches are added. A loss that
        compares the rows of a batch, such as a contrastive one, gathers the rows of all shards with
        ``jax.lax.all_gather(x, "data", tiled=True)``; see docs/training.md.

        Args:
          params: Parameters from :meth:`init`.
          batch: Some rows of a global batch.
          randomness: Random numbers for dropout and the like; None during evaluation.

        Returns:
          Scalars "loss", "count", and any others except "skipped" and "grad_norm". They are sums,
          not means, so that the weight of a row does not depend on the number of devices. Others
          may be pairs: a sum, and the count that it is divided by in reports.
        """

    @property
    def training_loss(self) -> Loss:
        """The loss that steps minimize, by default :meth:`loss`, which validations compute.

        It may be a ``jax.tree_util.Partial`` with arguments before the parameters. Their arrays are
        inputs of the step, without gradients, that no checkpoint holds.
        """
        return self.loss

    @abc.abstractmethod
    def batches(self, start: int, shards: BatchShards) -> Iterator[PyTree]:
        """Yields batches ``start``, ``start + 1`` and so on, each a pure function of its number.

        A batch is a pytree of NumPy arrays with rows along their first axes. The number of rows of
        a global batch is divisible by ``shards.row_multiple``. On several hosts, each process
        yields only its own rows, ``shards.local(batch)``. :func:`~jaxformer.prefetch` prepares
        batches in threads.

        Args:
          start: Number of the first batch, from 0: the number of steps already taken.
          shards: Batch shards of the mesh, including those that this process reads.
        """

    @abc.abstractmethod
    def identity(self) -> dict[str, str]:
        """Returns hashes of all inputs of the task, by name: data, vocabulary, options.

        A run can be resumed only with the same hashes.
        """

    def evaluate(
        self,
        params: PyTree,
        mesh: Mesh,
        check_stop: CheckStop,
    ) -> dict[str, float]:
        """Computes named values, including :attr:`best`; an empty dict means no evaluation.

        An error ends the run if no validation succeeded before; a later one is only reported.
        Functions jitted here, and a loss defined here, are compiled at every validation.

        Args:
          params: Parameters on the devices of the mesh, as :func:`~jaxformer.evaluate_loss` takes
            them.
          mesh: Mesh of the run.
          check_stop: Call it from time to time, equally often on all processes. It raises an
            exception if the run is to stop, and counts as progress for ``stall_timeout``.
        """
        return {}

    def describe(self) -> PyTree:
        """Returns a :class:`~jaxformer.nn.ParameterInfo` or None for each parameter.

        It names the axes that a mesh may split: "vocab", "d_model", "heads" and "d_ff". The default
        finds the descriptions that :func:`~jaxformer.nn.parameter` attached, as in all modules of
        this package. All other parameters are replicated.

        Index the rows of a sharded table only with :func:`~jaxformer.nn.embed`, or after
        ``jax.lax.with_sharding_constraint(table, jax.sharding.PartitionSpec())``. Otherwise XLA
        aborts on meshes where "data" and "fsdp" are both above 1 (jax 0.10.2).
        """
        return describe_init(self.init)

    def shapes(self, shards: BatchShards) -> Sequence[PyTree]:
        """Returns every shape of a global batch, as pytrees of ``jax.ShapeDtypeStruct``.

        The step is compiled for each shape at its first use; any other shape is an error. With no
        shapes, all are allowed. Rows are divisible by ``shards.row_multiple``.
        """
        return ()

    def flops(self, batch: PyTree) -> int:
        """Returns the floating-point operations of a step over this global batch; 0 if unknown.

        On devices whose peak is known, "teraflops_per_second" and "mfu" are then reported.
        """
        return 0

    def save(self, workdir: Workdir) -> None:
        """Writes the task's own files, such as a tokenizer, into the folder ``workdir.path``."""

    def summary(self) -> str:
        """Returns a summary of the data for the log, one or several lines."""
        return ""

    def describe_batch(self, number: int) -> str:
        """Returns a description of batch ``number``, from 0, if its update was not finite."""
        return ""

    def examples(self, number: int, batch: PyTree) -> Iterator[Example]:
        """Yields the examples of ``batch``, which has this number; by default its rows.

        ``jaxformer replay`` measures the loss and the gradient of each.
        """
        row_count = len(jax.tree.leaves(batch)[0])
        for row in range(row_count):
            rows = slice(row, row + 1)
            alone = jax.tree.map(operator.itemgetter(rows), batch)
            yield Example(row=row, batch=alone, text=f"row {row}")

    def example_ids(self, number: int) -> Sequence[int]:
        """Returns numbers of all examples of batch ``number``, if its update was not finite."""
        return ()


def check_task(task: object) -> None:
    """Raises a ``UserError`` if this is a class, or lacks methods of a task."""
    if isinstance(task, type):
        raise UserError(
            f"expected a Task, got the class {task.__name__}; give {task.__name__}(...)"
        )
    if not isinstance(task, Task):
        public = [name for name in dir(Task) if not name.startswith("_")]
        missing = [name for name in public if not hasattr(task, name)]
        raise UserError(
            f"expected a Task, got {type(task).__name__}, which has no {', '.join(missing)}; "
            "derive it from jaxformer.Task"
        )
