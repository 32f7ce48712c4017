"""Reports of a run: means over the steps since the last report, passed to all writers."""

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import optax
from jaxtyping import PyTree

from jaxformer.training.hosts import is_primary
from jaxformer.training.task import Sums
from jaxformer.training.writers import MetricsFile, TensorBoard, Terminal, Writer
from jaxformer.workdir import Workdir

# Steps dispatched ahead of the device. It must not run idle, but a run that is asked to stop waits
# for all of them, and a preempted machine leaves it only seconds.
_IN_FLIGHT = 4
# Sums that are not reported as means per count.
_NOT_MEANS = ("count", "tokens", "skipped")


class Reporter:
    """Passes reports to the terminal, ``metrics.jsonl``, TensorBoard and the user's writers.

    With several processes, only process 0 reports.
    """

    def __init__(
        self,
        folder: Workdir,
        *,
        start: int,
        steps: int,
        writers: Sequence[Writer] = (),
        formats: Mapping[str, str] | None = None,
    ) -> None:
        """Opens all writers; a resumed run keeps its reports up to step ``start``."""
        self._terminal = Terminal(start, steps, formats)
        self._own: list[Any] = [self._terminal]
        self._users: list[Writer] = []
        self._seen: set[tuple[str, float]] = set()
        if is_primary():
            metrics = MetricsFile(folder, start)
            self._own += [metrics, TensorBoard(folder, start)]
            self._users, self._seen = list(writers), metrics.cut

    def __enter__(self) -> "Reporter":
        return self

    def __exit__(self, *exception: object) -> None:
        for writer in self._own:
            writer.close()
        for writer in self._users:
            self._call(writer, writer.close)

    def log(self, message: str) -> None:
        self._terminal.log(message)

    def advance(self, step: int) -> None:
        """Advances the progress bar."""
        self._terminal.advance(step)

    def train(self, step: int, values: dict[str, float]) -> None:
        """Reports means of the training steps since the last report."""
        self._write(step, "train", values)

    def valid(self, step: int, values: dict[str, float]) -> None:
        """Reports one validation."""
        self._write(step, "valid", values)

    def failed_validation(self, step: int, error: Exception) -> None:
        """Reports the error of a validation that failed."""
        cause = f"{type(error).__name__}: {error}".split("\n")[0]
        for writer in self._own:
            writer.write(step, "failed_validation", {"error": cause})

    def skipped(self, step: int, batch: str, examples: list[int]) -> None:
        """Reports a step whose update was NaN or Inf, with the numbers of all its examples."""
        for writer in self._own:
            writer.write(step, "skipped", {"batch": batch, "examples": examples})

    def _write(self, step: int, kind: str, values: dict[str, float]) -> None:
        for writer in self._own:
            writer.write(step, kind, values)
        if (kind, step) in self._seen:
            return
        for writer in list(self._users):
            self._call(writer, writer.write, step, kind, dict(values))

    def _call(self, writer: Writer, method: Any, *arguments: Any) -> None:
        """Calls a user's writer; one that fails is dropped, and the run continues."""
        try:
            method(*arguments)
        except Exception as error:
            self._users = [other for other in self._users if other is not writer]
            cause = f"{type(error).__name__}: {error}".split("\n")[0]
            self.log(f"{type(writer).__name__} failed and gets no more reports: {cause}")


class Window:
    """Steps since the last report; their metrics stay on the device until then."""

    def __init__(self, learning_rate: optax.Schedule | None = None) -> None:
        self._schedule = learning_rate
        self._clear()

    def _clear(self) -> None:
        self._steps: list[int] = []
        self._metrics: list[Sums] = []
        self._waited = 0.0
        self._began = time.monotonic()

    def timed(self, batches: Iterator[PyTree]) -> Iterator[PyTree]:
        """Yields the same batches, and measures the time that the loop waits for them."""
        while True:
            began = time.monotonic()
            batch = next(batches, None)
            self._waited += time.monotonic() - began
            if batch is None:
                return
            yield batch

    def add(self, step: int, metrics: Sums) -> None:
        """Adds one step; blocks only if the device is far behind."""
        self._steps.append(step)
        self._metrics.append(metrics)
        if len(self._metrics) > _IN_FLIGHT:
            jax.block_until_ready(self._metrics[-1 - _IN_FLIGHT])

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stops the clock during work that is not training."""
        jax.block_until_ready(self._metrics)
        began = time.monotonic()
        yield
        self._began += time.monotonic() - began

    def skipped(self) -> list[int]:
        """Returns the steps that were skipped because their updates were not finite."""
        flags = jax.device_get([metrics["skipped"] for metrics in self._metrics])
        return [step for step, flag in zip(self._steps, flags, strict=True) if flag]

    def means(self, updates: int) -> dict[str, float]:
        """Returns means over the window without its skipped steps, and empties it.

        "waiting" is the fraction of the time in which the loop waited for batches. Devices compute
        meanwhile, so it is an upper bound of what loading costs.

        Args:
          updates: Number of optimizer updates so far.
        """
        every = jax.device_get(self._metrics)
        seconds = time.monotonic() - self._began
        values = mean_values(every)
        if self._schedule is not None:
            values["learning_rate"] = float(np.asarray(self._schedule(updates - 1)))
        if "tokens" in every[0]:
            values["tokens_per_second"] = sum(float(m["tokens"]) for m in every) / seconds
        values |= {
            "seconds_per_step": seconds / len(every),
            "waiting": self._waited / seconds,
            "skipped": float(sum(int(m["skipped"]) for m in every)),
        }
        self._clear()
        return values


def mean_values(sums: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns means per count from sums over batches; NaN if all batches were skipped.

    >>> mean_values([{"loss": 6.0, "hits": 1, "count": 2}, {"loss": 1.5, "hits": 2, "count": 1}])
    {'loss': 2.5, 'hits': 1.0}
    """
    good = [batch for batch in sums if not batch.get("skipped")]
    count = sum(float(batch["count"]) for batch in good) or math.nan

    def mean(name: str) -> float:
        return sum(float(batch[name]) for batch in good) / count

    values = {"loss": mean("loss")}
    others = sums[0].keys() - {"loss", *_NOT_MEANS} if sums else set()
    if "nll" in others:
        values["perplexity"] = math.exp(min(mean("nll"), 700.0))
    return values | {name: mean(name) for name in sorted(others - {"nll"})}
