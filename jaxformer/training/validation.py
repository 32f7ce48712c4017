"""Validation during training: scores of checkpoints, the best one, and early stopping."""

import math
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from jaxformer.errors import UserError
from jaxformer.runs import processes, watchdog
from jaxformer.runs.checkpoints import Checkpoints
from jaxformer.runs.reporting import Reporter
from jaxformer.runs.signals import StopSignals
from jaxformer.training.settings import FitConfig
from jaxformer.training.state import TrainState
from jaxformer.training.task import Task

# Values whose direction is known.
_DIRECTIONS = {
    **dict.fromkeys(("loss", "perplexity", "nats_per_character", "bits_per_character"), "min"),
    **dict.fromkeys(("bleu", "f1", "exact_match", "accuracy"), "max"),
}


class _ValidationStoppedError(Exception):
    """Ends a validation when the run has been asked to stop."""


def best_metric(task: Task, settings: FitConfig) -> tuple[str, str]:
    """Returns the name of the value that selects the best checkpoint, and "min" or "max".

    Raises:
      UserError: The direction is not known.
    """
    if settings.best_metric is None:
        return task.best
    name, _, mode = settings.best_metric.rpartition(":")
    if mode not in ("min", "max"):
        name, known = settings.best_metric, _DIRECTIONS | dict([task.best])
        if name not in known:
            raise UserError(
                f"best_metric={name}: expected one of {', '.join(known)}, or a value of evaluate "
                f"with its direction, {name}:min or {name}:max"
            )
        mode = known[name]
    return name, mode


class Validation:
    """Validations of a run.

    Attributes:
      history: The best score, higher being better, and the number of validations after it; empty
        before the first one.
    """

    def __init__(
        self,
        task: Task,
        settings: FitConfig,
        mesh: Mesh,
        checkpoints: Checkpoints,
        reporter: Reporter,
        stop: StopSignals,
        history: Sequence[Any],
    ) -> None:
        self._task, self._settings, self._mesh = task, settings, mesh
        self._checkpoints, self._reporter, self._stop = checkpoints, reporter, stop
        self._best = best_metric(task, settings)
        self.history = history

    def is_due(self, step: int) -> bool:
        """Returns whether the run validates after this step."""
        return step % self._settings.eval_every == 0 or step == self._settings.steps

    def run(self, step: int, state: TrainState) -> bool:
        """Validates a state that is saved or being saved, and attaches the score to its checkpoint.

        Returns:
          Whether the validation ended. Otherwise it was stopped, and runs again after resuming.
        """
        values, (name, mode) = self._evaluate(step, state), self._best
        if not values:
            return values is not None
        # Wait first: a process killed while it waits must not report this validation twice.
        self._checkpoints.wait()
        best_first = sorted(values.items(), key=lambda item: item[0] != name)
        self._reporter.write(step, "valid", dict(best_first))
        if name in values:
            score = values[name] if mode == "max" else -values[name]
            self._checkpoints.attach_score(step, score)
            self._count(score)
        return True

    def _evaluate(self, step: int, state: TrainState) -> dict[str, float] | None:
        """Returns the values of a validation, or None if it was stopped.

        A validation that fails ends the run if none succeeded before. A later failure is reported,
        and training continues. With several processes, every failure ends the run: the others wait
        for the failed process in the middle of a computation.
        """
        failures = []

        def check_stop() -> None:
            watchdog.progress(f"a batch of the validation of step {step}")
            try:
                self._checkpoints.check()  # copies the step to the mirror once it is saved
            except Exception as error:
                failures.append(error)
                raise
            if self._stop.asked():
                raise _ValidationStoppedError

        values, stopped = {}, False
        try:
            found = self._task.evaluate(state.params, self._mesh, check_stop)
            values = {each: float(value) for each, value in found.items()}
            needed = values or self._settings.patience or self._settings.best_metric
            if needed and self._best[0] not in values:
                raise UserError(
                    f"expected {self._best[0]!r}, which selects the best checkpoint (Task.best, "
                    f"best_metric), among the values of evaluate: got {', '.join(values) or 'none'}"
                )
        except _ValidationStoppedError:
            stopped = True
        except Exception as error:
            if not self.history or jax.process_count() > 1 or failures:
                raise
            self._reporter.failed_validation(step, error)
        if failures:  # the task has caught it
            raise failures[0]
        return None if self._stop.agree(stopped) else values

    def _count(self, score: float) -> None:
        """Counts the validations since the best one."""
        score, (best, since) = processes.all_gather(score)[0], self.history or (-math.inf, 0)
        self.history = (score, 0) if score > best else (best, since + 1)

    def out_of_patience(self) -> str:
        """Returns why the run ends before its last step; "" if it does not."""
        since = self.history[1] if self.history else 0
        ended = 0 < self._settings.patience <= since
        return f"no better {self._best[0]} in the last {since} validations" if ended else ""

    def resume(self, state: TrainState, start: int) -> bool:
        """Counts the validation of the checkpoint that the run resumes from.

        Repeats it if it was due and was interrupted; returns whether it ended, as :meth:`run`.
        """
        if (score := self._checkpoints.score(start)) is not None:
            self._count(score)
        elif start <= self._settings.steps and self.is_due(start):
            return self.run(start, state)
        return True
