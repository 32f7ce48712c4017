"""What a run says while it goes on: terminal, metrics.jsonl, and TensorBoard if it is there."""

import contextlib
import json
import math
import os
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import IO, Any

import jax
import numpy as np
from tqdm import tqdm

from jaxformer.config import Config
from jaxformer.data.batch import Batch
from jaxformer.files import write_file
from jaxformer.training.hosts import is_first
from jaxformer.training.optimizer import inverse_sqrt_schedule
from jaxformer.training.step import Metrics
from jaxformer.workdir import Workdir

# How many steps may wait for the device. It must not run out of them; but each is one more to wait
# for when the run is asked to stop, and a machine that is taken away leaves it only seconds.
_IN_FLIGHT = 4


class Reporter:
    """Reports to the terminal, to ``metrics.jsonl`` and, with the extra, to TensorBoard.

    A terminal gets a bar; a file or a pipe gets plain lines. Of several processes only the first
    reports.
    """

    def __init__(self, folder: Workdir, *, start: int, steps: int) -> None:
        """Goes on with the metrics of an earlier part of the run, up to its step ``start``."""
        self._steps = steps
        self._bar = tqdm(
            total=steps,
            initial=start,
            unit="step",
            dynamic_ncols=True,
            disable=not (sys.stderr.isatty() and is_first()),
        )
        self._lines = _open_metrics(folder, start)
        self._tensorboard = _open_tensorboard(folder, start) if is_first() else None

    def __enter__(self) -> "Reporter":
        """Nothing to do: files were opened on construction."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Closes bar and files."""
        self._bar.close()
        self._lines.close()
        if self._tensorboard is not None:
            self._tensorboard.close()

    def say(self, message: str) -> None:
        """Prints one line, above the bar if there is one."""
        if is_first():
            tqdm.write(message, file=sys.stderr)

    def advance(self, step: int) -> None:
        """Moves the bar."""
        self._bar.update(step - self._bar.n)

    def train(self, step: int, values: dict[str, float]) -> None:
        """Reports means of the training steps since the last report."""
        self._record("train", step, values)
        parts = (
            f"loss {values['loss']:.3f}",
            f"ppl {values['perplexity']:.2f}",
            f"lr {values['learning_rate']:.2e}",
            f"{values['tokens_per_second']:,.0f} tokens/s",
        )
        if not self._bar.disable:
            self._bar.set_postfix_str(", ".join(parts))
        else:
            seconds_left = values["seconds_per_step"] * (self._steps - step)
            left = tqdm.format_interval(int(seconds_left))
            self.say(f"step {step}/{self._steps}  {'  '.join(parts)}  {left} left")

    def valid(self, step: int, values: dict[str, float]) -> None:
        """Reports one validation."""
        self._record("valid", step, values)
        text = f"loss {values['loss']:.3f}  ppl {values['perplexity']:.2f}"
        for name, label in (("bleu", "sacreBLEU"), ("f1", "F1")):
            if name in values:
                text += f"  {label} {values[name]:.2f}  exact {values['exact_match']:.1f} %"
        self.say(f"step {step}/{self._steps}  validation: {text}")

    def failed_validation(self, step: int, error: Exception) -> None:
        """Reports that a validation failed, and why."""
        cause = f"{type(error).__name__}: {error}".split("\n")[0]
        self._write({"kind": "failed_validation", "step": step, "error": cause})
        self.say(
            f"step {step}/{self._steps}  validation failed, the checkpoint has no score: {cause}"
        )

    def _record(self, kind: str, step: int, values: dict[str, float]) -> None:
        # JSON has no NaN and no infinity.
        known = {k: v if math.isfinite(v) else None for k, v in values.items()}
        self._write({"kind": kind, "step": step, **known})
        if self._tensorboard is not None:
            for name, value in values.items():
                self._tensorboard.add_scalar(f"{kind}/{name}", value, step)

    def _write(self, record: dict[str, Any]) -> None:
        print(json.dumps(record), file=self._lines, flush=True)


class Window:
    """The steps since the last report; their metrics stay on the device until then."""

    def __init__(self, config: Config) -> None:
        """Starts an empty window now."""
        self._schedule = inverse_sqrt_schedule(
            config.model.d_model,
            config.training.warmup_steps,
            config.training.learning_rate_scale,
        )
        self._clear()

    def _clear(self) -> None:
        self._steps: list[int] = []
        self._metrics: list[Metrics] = []
        self._waited = 0.0
        self._began = time.monotonic()

    def timed(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The same batches; counts the time in which the loop waits for them."""
        while True:
            began = time.monotonic()
            batch = next(batches, None)
            self._waited += time.monotonic() - began
            if batch is None:
                return
            yield batch

    def add(self, step: int, metrics: Metrics) -> None:
        """Takes up one step; waits only if the device is far behind."""
        self._steps.append(step)
        self._metrics.append(metrics)
        if len(self._metrics) > _IN_FLIGHT:
            jax.block_until_ready(self._metrics[-1 - _IN_FLIGHT])

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stops the clock, for work that is not training."""
        jax.block_until_ready(self._metrics)
        began = time.monotonic()
        yield
        self._began += time.monotonic() - began

    def skipped(self) -> list[int]:
        """The steps that were skipped, since their updates were not finite."""
        flags = jax.device_get([metrics.skipped for metrics in self._metrics])
        return [step for step, flag in zip(self._steps, flags, strict=True) if flag]

    def means(self, updates: int) -> dict[str, float]:
        """Means over the window, skipped steps left out; empties it.

        "waiting" is the share of the time in which the loop waited for batches. Devices work on
        meanwhile: what the data costs is at most that.

        Args:
          updates: How often the optimizer has updated the parameters so far.
        """
        every = jax.device_get(self._metrics)
        seconds = time.monotonic() - self._began
        good = [metrics for metrics in every if not metrics.skipped]
        tokens = sum(int(m.source_tokens) + int(m.target_tokens) for m in every)
        values = {
            **loss_means(good),
            "learning_rate": float(np.asarray(self._schedule(updates - 1))),
            "tokens_per_second": tokens / seconds,
            "seconds_per_step": seconds / len(every),
            "waiting": self._waited / seconds,
            "skipped": float(len(every) - len(good)),
        }
        self._clear()
        return values


def loss_means(metrics: list[Metrics]) -> dict[str, float]:
    """Loss and perplexity per target token, from sums over batches; NaN for no batch."""
    tokens = sum(float(m.target_tokens) for m in metrics) or math.nan
    nll = sum(float(m.nll) for m in metrics) / tokens
    return {
        "loss": sum(float(m.loss) for m in metrics) / tokens,
        "perplexity": math.exp(min(nll, 700.0)),
    }


def _open_metrics(folder: Workdir, start: int) -> IO[str]:
    """Opens ``metrics.jsonl`` without the reports from after the step that the run resumes from.

    They go to the end of ``metrics.after-<start>.jsonl``. Only a torn last line is dropped.
    """
    if not is_first():
        return pathlib.Path(os.devnull).open("w", encoding="utf-8")
    content = folder.metrics.read_bytes() if folder.metrics.exists() else b""
    *lines, torn = content.split(b"\n")
    if _step_of(torn) is not None:  # nothing but its end is missing
        lines.append(torn)
    kept, cut = [], []
    for line in filter(bytes.strip, lines):
        step = _step_of(line)
        (kept if step is not None and step <= start else cut).append(line + b"\n")
    if cut:
        copy = folder.metrics.with_name(f"metrics.after-{start}.jsonl")
        write_file(copy, (copy.read_bytes() if copy.exists() else b"") + b"".join(cut))
    write_file(folder.metrics, b"".join(kept))
    return folder.metrics.open("a", encoding="utf-8")


def _step_of(line: bytes) -> float | None:
    """The step of a report; None if the line is none."""
    try:
        step = json.loads(line)["step"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return step if isinstance(step, int | float) else None


def _open_tensorboard(folder: Workdir, start: int) -> Any:
    try:
        import tensorboardX  # the extra [tensorboard]
    except ImportError:
        return None
    # What is after the step that the run goes on from will be reported again.
    return tensorboardX.SummaryWriter(str(folder.tensorboard), purge_step=start + 1)
