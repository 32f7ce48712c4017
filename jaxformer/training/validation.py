"""Validation during training: mean losses, checkpoint scores, early stopping."""

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterable, Sequence

import jax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import PyTree

from jaxformer.errors import UserError
from jaxformer.layout import global_mesh
from jaxformer.nn.backend import Backend, backend
from jaxformer.runs import processes, watchdog
from jaxformer.runs.checkpoints import Checkpoints
from jaxformer.runs.reporting import Reporter, mean_values
from jaxformer.runs.signals import StopSignals
from jaxformer.training.mesh import DATA_AXIS
from jaxformer.training.placement import batch_sharding, replicated, sum_over_data, to_devices
from jaxformer.training.settings import FitConfig
from jaxformer.training.step import checked_sums
from jaxformer.training.task import Loss, Sums, Task
from jaxformer.waits import announce

# Metrics whose direction is known.
_DIRECTIONS = {
    "loss": "min",
    "perplexity": "min",
    "nats_per_character": "min",
    "bits_per_character": "min",
    "bleu": "max",
    "f1": "max",
    "exact_match": "max",
    "accuracy": "max",
}


# Compiled once for all evaluations of a run. The cache is small, since a loss may keep data alive.
@functools.lru_cache(maxsize=2)
def _eval_step(loss: Loss, mesh: Mesh, _: Backend) -> Callable[[PyTree, PyTree], Sums]:
    """Returns the jitted validation step: sums over a global batch, without randomness."""

    def sums(params: PyTree, batch: PyTree) -> Sums:
        return checked_sums(loss(params, batch, None))

    global_sums = sum_over_data(mesh, sums, (PartitionSpec(DATA_AXIS),))
    step = jax.jit(
        global_sums,
        in_shardings=(None, batch_sharding(mesh)),
        out_shardings=replicated(mesh),
    )
    return global_mesh(mesh)(step)


def evaluate_loss(
    loss: Loss,
    params: PyTree,
    batches: Iterable[PyTree],
    mesh: Mesh,
    check_stop: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Computes means per count over all batches; a sum "nll" gives "perplexity".

    Args:
      loss: Returns sums over a batch; see :meth:`Task.loss <jaxformer.Task.loss>`.
      params: Parameters on the devices of the mesh.
      batches: Batches of NumPy arrays, with rows divisible by the batch shards of the mesh. Each of
        several processes passes its own rows.
      mesh: Mesh from :func:`~jaxformer.make_mesh`.
      check_stop: Called before each batch.

    Returns:
      "loss", "perplexity" if there is a sum "nll", and every other sum, each divided by "count".
    """
    # One at a time, since concurrent programs that sum over the devices of a CPU can deadlock.
    sums = []
    for batch in batches:
        check_stop()
        step = _eval_step(loss, mesh, backend())
        batch_sums = step(params, to_devices(mesh, batch))
        sums.append(jax.device_get(batch_sums))
    return mean_values(sums)


class _ValidationStoppedError(Exception):
    """Ends a validation when the run is to stop."""


def best_metric(task: Task, settings: FitConfig) -> tuple[str, str]:
    """Returns the name of the value that selects the best checkpoint, and "min" or "max"."""
    if settings.best_metric is None:
        return task.best

    name, _, mode = settings.best_metric.rpartition(":")
    if mode in ("min", "max"):
        return name, mode

    # The setting gives no direction: the metric must have a known one.
    name = settings.best_metric
    task_name, task_mode = task.best
    known = _DIRECTIONS | {task_name: task_mode}
    if name not in known:
        raise UserError(
            f"best_metric={name}: expected one of {', '.join(known)}, or a value of evaluate "
            f"with its direction, {name}:min or {name}:max"
        )
    return name, known[name]


@dataclasses.dataclass
class Validation:
    """Validations of one run, and their scores since the best one."""

    task: Task
    settings: FitConfig
    best: tuple[str, str]  # of best_metric
    mesh: Mesh
    checkpoints: Checkpoints
    reporter: Reporter
    stop: StopSignals
    # The best score, higher is better, and the number of validations after it, if there is one.
    history: Sequence[float]
    # The values before the first step, if they were computed, and of the last validation.
    initial: dict[str, float] | None = None
    newest: dict[str, float] | None = None
    has_compiled: bool = False

    def is_due(self, step: int) -> bool:
        is_last = step == self.settings.steps
        return is_last or step % self.settings.eval_every == 0

    def run(self, step: int, params: PyTree) -> bool:
        """Validates and scores a checkpoint; returns False if stopped, to run again later."""
        values = self._measure(step, params)
        if values is None:
            return False
        if values:
            self._report(step, values)
        return True

    def run_on_start(self, params: PyTree) -> bool:
        """Validates what a run begins with, which has no checkpoint; returns False if stopped."""
        values = self._measure(0, params)
        if values is None:
            return False
        if values:
            self.reporter.write(0, "valid", self._best_first(values))
            self.initial = values
        return True

    def report_change(self) -> None:
        """Prints the first and the last validation, if there are both."""
        if self.initial is not None and self.newest is not None:
            self.reporter.compare(self.initial, self._best_first(self.newest))

    def _measure(self, step: int, params: PyTree) -> dict[str, float] | None:
        """Returns the values of a validation, or None if it was stopped; says that it runs."""
        work = contextlib.nullcontext()
        if self.history or self.has_compiled:
            work = announce(f"validating step {step}")
        elif type(self.task).evaluate is not Task.evaluate:
            self.reporter.log(f"validating step {step}; the first time takes longer, to compile")

        began = time.monotonic()
        with work:
            values = self._evaluate(step, params)
        if not self.has_compiled:
            self.reporter.exclude_compilation(time.monotonic() - began)
            self.has_compiled = True
        return values

    def _report(self, step: int, values: dict[str, float]) -> None:
        """Reports the values of a validation and scores its checkpoint."""
        # Wait first, since a process killed while waiting must not report this validation twice.
        self.checkpoints.wait()
        self.reporter.write(step, "valid", self._best_first(values))
        self.newest = values

        name, mode = self.best
        if name in values:
            score = values[name]
            if mode == "min":
                score = -score
            self.checkpoints.attach_score(step, score)
            self._record_score(score)

    def _best_first(self, values: dict[str, float]) -> dict[str, float]:
        """Returns the values, beginning with the one that selects the best checkpoint."""
        name, _ = self.best
        return dict(sorted(values.items(), key=lambda item: item[0] != name))

    def _evaluate(self, step: int, params: PyTree) -> dict[str, float] | None:
        """Returns the values of a validation, or None if it was stopped.

        A failure ends the run if no validation succeeded before, or if several processes wait for
        the failed one in the middle of a computation. A later failure is only reported.
        """
        save_failures: list[Exception] = []

        def check_stop() -> None:
            watchdog.record_progress(f"a batch of the validation of step {step}")
            try:
                self.checkpoints.check()  # copies the step to the mirror once it is saved
            except Exception as error:
                save_failures.append(error)
                raise
            if self.stop.should_stop():
                raise _ValidationStoppedError

        values: dict[str, float] = {}
        stopped = False
        try:
            found = self.task.evaluate(params, self.mesh, check_stop)
            values = {name: float(value) for name, value in found.items()}
            self._check_values(values)
        except _ValidationStoppedError:
            stopped = True
        except Exception as error:
            has_succeeded_before = bool(self.history) or self.initial is not None
            if not has_succeeded_before or jax.process_count() > 1 or save_failures:
                raise
            self.reporter.report_failure(step, error)

        if save_failures:  # the task has caught it
            raise save_failures[0]
        if self.stop.agree_to_stop(stopped):
            return None
        return values

    def _check_values(self, values: dict[str, float]) -> None:
        """Checks that the value that selects the best checkpoint is there if it is needed."""
        name, _ = self.best
        is_needed = values or self.settings.patience or self.settings.best_metric
        if is_needed and name not in values:
            raise UserError(
                f"expected {name!r}, which selects the best checkpoint (Task.best, best_metric), "
                f"among the values of evaluate: got {', '.join(values) or 'none'}"
            )

    def _record_score(self, score: float) -> None:
        """Counts the validations since the best one."""
        score = processes.all_gather(score)[0]  # of process 0
        best, since = self.history or (-math.inf, 0)
        if score > best:
            self.history = (score, 0)
        else:
            self.history = (best, since + 1)

    def out_of_patience(self) -> str:
        """Returns the reason for ending the run early, or ""."""
        if not self.history:
            return ""
        _, since = self.history
        if 0 < self.settings.patience <= since:
            validations = "validation" if since == 1 else f"{since} validations"
            return f"no better {self.best[0]} in the last {validations}"
        return ""

    def resume(self, params: PyTree, start: int) -> bool:
        """Counts the validation of step ``start``; repeats an interrupted one, as :meth:`run`."""
        score = self.checkpoints.score(start)
        if score is not None:
            self._record_score(score)
            return True

        was_interrupted = start <= self.settings.steps and self.is_due(start)
        if was_interrupted:
            return self.run(start, params)
        return True
