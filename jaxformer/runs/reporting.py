"""Reports of a run: means over the steps since the last report, passed to all writers."""

import contextlib
import dataclasses
import math
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import optax
from jaxtyping import PyTree
from tqdm import tqdm

from jaxformer.errors import UserError
from jaxformer.runs.processes import is_primary
from jaxformer.runs.workdir import Workdir
from jaxformer.runs.writers import MetricsFile, TensorBoard, Terminal, Writer

# Steps dispatched ahead of the device, to keep it busy. They are few, since a run waits for them
# before it stops, and a preempted machine leaves it only seconds.
_IN_FLIGHT = 4
# Work of a run besides its steps, as a report names it and as the log does.
_WORK = {
    "start": "to start",
    "waiting": "to wait for batches",
    "compilation": "to compile",
    "checkpoints": "to save",
    "validation": "to validate",
}
_SMALLEST_SHARE = 0.005  # that the log names
# Sums that are not reported as means per count.
_NOT_MEANS = ("count", "tokens", "skipped", "grad_norm")
# A gradient norm this many times the mean of the others in the window, and of the steps of the
# window before, is a spike. Norms of the first window are not: they begin large.
_SPIKE = 10


class TimeUse:
    """Shares of works in the time of a process that trains; the share of steps is its goodput."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._seconds = dict.fromkeys(_WORK, 0.0)

    @contextlib.contextmanager
    def measure(self, work: str) -> Iterator[None]:
        """Counts the time of a block for a work that is not steps."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.add(work, time.monotonic() - began)

    def add(self, work: str, seconds: float) -> None:
        self._seconds[work] += seconds

    def shares(self) -> dict[str, float]:
        """Returns the seconds so far, and the share of steps and of each other work in them."""
        total = time.monotonic() - self._began
        others = {work: seconds / total for work, seconds in self._seconds.items()}
        return {"seconds": total, "steps": 1 - sum(others.values()), **others}


class Reporter:
    """Passes reports to the terminal, ``metrics.jsonl``, TensorBoard and writers, on process 0."""

    def __init__(
        self,
        folder: Workdir,
        *,
        start: int,
        steps: int,
        writers: Sequence[Writer] = (),
        formats: Mapping[str, str] | None = None,
    ) -> None:
        """Opens all writers. A resumed run keeps its reports up to step ``start``."""
        self._steps = steps
        terminal = Terminal(start, steps, formats)
        self.log = terminal.log
        self.advance = terminal.advance
        self.exclude_compilation = terminal.exclude_compilation
        self.compare = terminal.compare

        self._metrics: MetricsFile | None = None
        self._writers: list[Writer] = []
        if is_primary():
            self._metrics = MetricsFile(folder, start)
            self._writers = [terminal, TensorBoard(folder, start), *writers]

    def __enter__(self) -> "Reporter":
        return self

    def __exit__(self, *exception: object) -> None:
        for writer in list(self._writers):
            self._call_writer(writer, writer.close)

        if self._metrics is not None:
            self._metrics.close()

    def write(self, step: int, kind: str, values: dict[str, float]) -> None:
        """Passes a report to all writers, except user writers that received it before a resume."""
        if self._metrics is None:
            return
        is_new = self._record(step, kind, values)
        if not is_new:
            return

        was_reported = (kind, step) in self._metrics.removed
        for writer in list(self._writers):
            is_ours = isinstance(writer, Terminal | TensorBoard)
            if is_ours or not was_reported:
                self._call_writer(writer, writer.write, step, kind, dict(values))

    def report_failure(self, step: int, error: Exception) -> None:
        """Reports the error of a failed validation, with a traceback unless it is a UserError."""
        cause = describe_error(error)
        self._record(step, "failed_validation", {"error": cause})

        place = f"step {step}/{self._steps}"
        self.log(f"{place}  validation failed, the checkpoint has no score: {cause}")
        if not isinstance(error, UserError):
            trace = "".join(traceback.format_exception(error))
            self.log(trace.rstrip())

    def report_skipped(
        self,
        step: int,
        batch: str,
        examples: list[int],
        *,
        now: int,
    ) -> None:
        """Reports a skipped step and its examples, again if a run resumes before step ``now``."""
        values = {
            "batch": batch,
            "examples": examples,
            "reported": now,
        }
        if not self._record(step, "skipped", values):
            return

        line = f"step {step} skipped: its update was NaN or Inf"
        if batch:
            line += f"; {batch}"
        if examples:
            line += "; metrics.jsonl has the numbers of all"
        self.log(line)

    def report_time(self, step: int, use: TimeUse) -> None:
        """Reports what the time of this process went into, at its last step."""
        shares = use.shares()
        self._record(step, "time", shares)

        length = tqdm.format_interval(int(shares["seconds"]))
        parts = [f"{shares['steps']:.0%} for steps"]
        for work, text in _WORK.items():
            if shares[work] >= _SMALLEST_SHARE:
                parts.append(f"{shares[work]:.0%} {text}")
        self.log(f"time {length}: {', '.join(parts)}")

    def _record(self, step: int, kind: str, values: Mapping[str, Any]) -> bool:
        """Adds a report to the metrics; returns False if an earlier run has already added it."""
        if self._metrics is None:
            return False
        return self._metrics.write(step, kind, values)

    def _call_writer(self, writer: Writer, method: Any, *arguments: Any) -> None:
        """Calls a writer; if it fails, it is dropped, and the run continues."""
        try:
            method(*arguments)
        except Exception as error:
            self._writers = [other for other in self._writers if other is not writer]
            name = type(writer).__name__
            self.log(f"{name} failed and gets no more reports: {describe_error(error)}")


def describe_error(error: Exception) -> str:
    """Returns the type and the first line of an error."""
    text = f"{type(error).__name__}: {error}"
    return text.split("\n")[0]


@dataclasses.dataclass
class Totals:
    """Sums over the steps since the last report. They are saved with each checkpoint, as JSON."""

    steps: int = 0
    skipped: list[int] = dataclasses.field(default_factory=list)  # their updates were not finite
    sums: dict[str, float] = dataclasses.field(default_factory=dict)  # over all other steps
    tokens: float = 0.0  # of all steps
    seconds: float = 0.0
    waited: float = 0.0  # seconds that the loop waited for batches
    flops: float = 0.0  # 0 if the task does not count them
    largest_norm: float = 0.0  # of the gradients, without skipped steps
    largest_step: int = 0
    norm_before: float = 0.0  # mean gradient norm of the last report; 0 if there is none


class ReportWindow:
    """Steps since the last report, whose metrics stay on the device until they are needed."""

    def __init__(
        self,
        learning_rate: optax.Schedule | None = None,
        saved: Mapping[str, Any] | None = None,
        peak_flops: float | None = None,
        time_use: TimeUse | None = None,
    ) -> None:
        """Begins a window, or continues saved totals; ``peak_flops`` is the sum over devices.

        ``time_use`` is told of the time that is not for steps.
        """
        self._time_use = time_use or TimeUse()
        self._schedule = learning_rate
        self._peak_flops = peak_flops

        self._totals = Totals(**saved or {})
        # When the window began; saved seconds count as time since then.
        self._began = time.monotonic() - self._totals.seconds
        # Steps that are not in the totals yet, with their metrics on the device.
        self._pending: list[tuple[int, Mapping[str, Any]]] = []

    def time_batches(self, batches: Iterator[PyTree]) -> Iterator[PyTree]:
        """Yields the batches, and measures the time that the loop waits for them."""
        began = time.monotonic()
        for batch in batches:
            waited = time.monotonic() - began
            self._totals.waited += waited
            self._time_use.add("waiting", waited)
            yield batch
            began = time.monotonic()

    def add(
        self,
        step: int,
        metrics: Mapping[str, Any],
        flops: int = 0,
    ) -> None:
        """Adds one step; blocks only if the device lags far behind."""
        self._totals.flops += flops
        self._pending.append((step, metrics))
        if len(self._pending) > _IN_FLIGHT:
            jax.block_until_ready(self._pending[-1 - _IN_FLIGHT])

    @contextlib.contextmanager
    def pause_clock(self, work: str) -> Iterator[None]:
        """Stops the clock during work that is not training, such as "validation"."""
        # Steps in progress are training.
        jax.block_until_ready(self._pending)

        began = time.monotonic()
        with self._time_use.measure(work):
            yield
        self._began += time.monotonic() - began

    def describe_spike(self) -> str:
        """Describes a gradient norm far above the others in this window and the last, if any."""
        totals = self.totals()
        others = totals.steps - len(totals.skipped) - 1
        if others < 1 or not totals.norm_before:
            return ""

        largest = totals.largest_norm
        mean_of_others = (totals.sums["grad_norm"] - largest) / others
        usual = max(mean_of_others, totals.norm_before)
        if largest <= _SPIKE * usual:
            return ""
        return (
            f"step {totals.largest_step}: its gradient norm of {largest:.4g} is a spike; the mean "
            f"of the other steps since the last report is {mean_of_others:.4g}"
        )

    def totals(self) -> Totals:
        """Waits for the steps and returns the totals."""
        totals = self._totals
        for step, metrics in jax.device_get(self._pending):
            totals.steps += 1
            totals.tokens += float(metrics.get("tokens", 0))
            _add(totals.sums, metrics)
            if metrics["skipped"]:
                totals.skipped.append(step)
                continue

            norm = float(metrics["grad_norm"])
            if norm > totals.largest_norm:
                totals.largest_norm = norm
                totals.largest_step = step

        self._pending = []
        totals.seconds = time.monotonic() - self._began
        return totals

    def means(self, updates: int) -> dict[str, float]:
        """Returns means over the window without its skipped steps, and empties it.

        The learning rate is the rate of the last of this many updates, or of the first if there is
        none yet. "waiting" is the fraction of the time that the loop waited for batches, an upper
        bound of the cost of loading, since devices compute meanwhile. "mfu" is the model FLOPs
        utilization.
        """
        totals = self.totals()
        updated = totals.steps - len(totals.skipped)

        values = _means(totals.sums)
        values["grad_norm"] = totals.sums["grad_norm"] / (updated or math.nan)
        if self._schedule is not None:
            count = max(0, updates - 1)  # optax's, which is 0 at the first update
            rate = self._schedule(count)
            values["learning_rate"] = float(np.asarray(rate))

        if "tokens" in totals.sums:
            values["tokens_per_second"] = totals.tokens / totals.seconds
        if totals.flops and self._peak_flops:
            flops_per_second = totals.flops / totals.seconds
            values["teraflops_per_second"] = flops_per_second / 1e12
            values["mfu"] = flops_per_second / self._peak_flops

        values["seconds_per_step"] = totals.seconds / totals.steps
        values["waiting"] = totals.waited / totals.seconds
        values["skipped"] = float(len(totals.skipped))

        # The next window begins.
        norm_before = values["grad_norm"] if updated else 0.0
        self._totals = Totals(norm_before=norm_before)
        self._began = time.monotonic()
        return values


def mean_values(sums: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Returns means per count from sums over batches; NaN if all batches were skipped.

    A sum "hits:count" is the denominator of "hits" in place of "count".
    """
    total: dict[str, float] = {}
    for batch in sums:
        _add(total, batch)
    return _means(total)


def _add(total: dict[str, float], batch: Mapping[str, Any]) -> None:
    """Adds the sums of one batch, or zeros if it was skipped."""
    is_skipped = bool(batch.get("skipped"))
    # One by one, as in a resumed run: ``sum`` rounds differently since Python 3.12.
    for name, value in batch.items():
        added = 0.0 if is_skipped else float(value)
        total[name] = total.get(name, 0.0) + added


def _means(total: Mapping[str, float]) -> dict[str, float]:
    """Divides sums by their counts; the loss comes first, and the rest is in order."""
    means = {}
    for name, value in total.items():
        if name in _NOT_MEANS or ":" in name:
            continue

        count = total.get(f"{name}:count", total.get("count"))
        means[name] = value / (count or math.nan)

    values = {"loss": means.pop("loss", math.nan)}
    if "nll" in means:
        nll = means.pop("nll")
        values["perplexity"] = math.exp(min(nll, 700.0))  # exp(710) overflows
    for name in sorted(means):
        values[name] = means[name]
    return values
