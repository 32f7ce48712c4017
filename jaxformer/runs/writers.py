"""Writers of reports: the terminal, ``metrics.jsonl``, TensorBoard, and user-defined writers."""

import importlib.util
import json
import math
import pathlib
import sys
import time
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from tqdm import tqdm

from jaxformer.files import open_file, write_file
from jaxformer.progress import ProgressBar
from jaxformer.runs.processes import is_primary
from jaxformer.runs.workdir import Workdir

Values = Mapping[str, Any]

# Formats of values in the log, by name; an empty one hides the value.
_FORMATS = {
    "loss": "loss {:.3f}",
    "perplexity": "ppl {:.2f}",
    "grad_norm": "norm {:.3g}",
    "learning_rate": "lr {:.2e}",
    "tokens_per_second": "{:,.0f} tokens/s",
    "teraflops_per_second": "{:.3g} TFLOP/s",
    "mfu": "MFU {:.1%}",
    "seconds_per_step": "",
    "waiting": "",
    "skipped": "",
}
_FLUSH_SECONDS = 60.0  # seconds after which TensorBoard's events are written to the disk


@runtime_checkable
class Writer(Protocol):
    """Receives the reports of a run. :func:`~jaxformer.fit` calls it on process 0 only."""

    def write(self, step: int, kind: str, values: dict[str, float]) -> None:
        """Receives one report.

        Each report is passed at most once, even if a resumed run repeats it. If the run is killed
        just before or during the call, the report is not passed again.

        Args:
          step: Number of steps taken.
          kind: "train", means since the last report, or "valid", one validation.
          values: Numbers by name; NaN and infinity are possible.
        """
        ...

    def close(self) -> None:
        """Called when the run ends, even with an error."""
        ...


class Terminal:
    """A progress bar on a terminal; plain lines in a file or a pipe."""

    def __init__(self, start: int, steps: int, formats: Mapping[str, str] | None = None) -> None:
        self._start, self._steps, self._began = start, steps, time.monotonic()
        self._reported, self._training = start, 0.0  # the last step reported; seconds of steps
        self._formats = {**_FORMATS, **(formats or {})}
        self._bar = ProgressBar(
            total=steps,
            initial=start,
            unit="step",
            dynamic_ncols=True,
            disable=not (sys.stderr.isatty() and is_primary()),
        )

    def log(self, message: str) -> None:
        """Prints a message, above the bar if there is one."""
        if is_primary():
            tqdm.write(message, file=sys.stderr)

    def advance(self, step: int) -> None:
        self._bar.update(step - self._bar.n)

    def exclude_compilation(self, seconds: float) -> None:
        """Leaves seconds that will not come again out of the estimate of the time left."""
        self._began += seconds

    def write(self, step: int, kind: str, values: Values) -> None:
        parts = [
            self._formats[name].format(value) if name in self._formats else f"{name} {value:.4g}"
            for name, value in values.items()
            if self._formats.get(name) != ""
        ]
        if kind == "valid":
            self.log(f"step {step}/{self._steps}  validation: {'  '.join(parts)}")
        elif not self._bar.disable:
            self._bar.values = parts
            self._bar.refresh()
        else:
            left = tqdm.format_interval(int(self._seconds_left(step, values["seconds_per_step"])))
            self.log(f"step {step}/{self._steps}  {'  '.join(parts)}  {left} left")

    def _seconds_left(self, step: int, seconds_per_step: float) -> float:
        """Assumes steps as since the last report, and the mean of validations and checkpoints."""
        self._training += seconds_per_step * (step - self._reported)
        self._reported = step
        others = max(0.0, time.monotonic() - self._began - self._training)
        return (seconds_per_step + others / max(1, step - self._start)) * (self._steps - step)

    def close(self) -> None:
        self._bar.close()


class MetricsFile:
    """``metrics.jsonl``: one JSON line for each report.

    A run that was killed between the report of a validation and its score repeats the validation,
    but not its report.
    """

    def __init__(self, folder: Workdir, start: int) -> None:
        """Opens the file; moves reports after ``start`` to ``metrics.after-<start>.jsonl``."""
        *lines, torn = _content(folder.metrics).split(b"\n")
        if _parse_report(torn) is not None:  # only the line end is missing
            lines.append(torn)
        kept, cut, self._kept = [], [], set()
        for line in filter(bytes.strip, lines):
            report = _parse_report(line)
            if report is not None and report[2] <= start:
                kept.append(line + b"\n")
                self._kept.add(report[:2])
            else:
                cut.append(line + b"\n")
        if cut:
            copy = folder.metrics.with_name(f"metrics.after-{start}.jsonl")
            write_file(copy, _content(copy) + b"".join(cut))
        write_file(folder.metrics, b"".join(kept))
        earlier = folder.path.glob("metrics.after-*.jsonl")
        reports = (_parse_report(line) for path in earlier for line in _content(path).split(b"\n"))
        # Reports after ``start`` that this or an earlier resumption removed; they will come again.
        self.removed = {report[:2] for report in reports if report and report[2] > start}
        # Unbuffered, so that no writes are pending when a full disk ends the run.
        self._file = folder.metrics.open("ab", buffering=0)

    def write(self, step: int, kind: str, values: Values) -> bool:
        """Appends a line, null for NaN and infinity, unless it was kept; returns whether it did."""
        if (kind, step) in self._kept:
            return False
        known = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }
        line = json.dumps({"kind": kind, "step": step, **known}).encode() + b"\n"
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            raise OSError(
                f"{self._file.name}: {error.strerror}; free or repair the disk, then run the same "
                "command"
            ) from error
        return True

    def close(self) -> None:
        self._file.close()


def _content(path: pathlib.Path) -> bytes:
    """Returns the content of a file of the workdir, empty if there is none."""
    try:
        with open_file(path, path.parent) as file:
            return file.read()
    except FileNotFoundError:
        return b""


def _parse_report(line: bytes) -> tuple[str, float, float] | None:
    """Returns kind and step of the report in a line, if it is one, and when it was made."""
    try:
        values = json.loads(line)
        report = values.get("kind"), values["step"], values.get("reported", values["step"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    good = isinstance(report[0], str) and all(isinstance(n, int | float) for n in report[1:])
    return report if good else None


class TensorBoard:
    """TensorBoard's event files, if the extra ``tensorboard`` is installed.

    The thread of tensorboardX's ``SummaryWriter`` ends at the first disk error, and reports then
    wait for it forever (tensorboardX 2.6.5). This class therefore writes in the caller's thread.
    """

    def __init__(self, folder: Workdir, start: int) -> None:
        self._folder, self._start = folder.tensorboard, start
        self._file: Any = None
        self._next_flush = 0.0

    def write(self, step: int, kind: str, values: Values) -> None:
        if importlib.util.find_spec("tensorboardX") is None:
            return
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.summary import scalar

        if self._file is None:
            self._folder.mkdir(exist_ok=True)
            self._file = EventsWriter(str(self._folder / "events"), f".{self._start}")
            # TensorBoard hides earlier events from this step on, since the run repeats them.
            self._add(self._start + 1, session_log={"status": "START"})
        for name, value in values.items():
            self._add(step, summary=scalar(f"{kind}/{name}", value))
        if time.monotonic() > self._next_flush:  # it waits for the disk
            self._file.flush()
            self._next_flush = time.monotonic() + _FLUSH_SECONDS

    def _add(self, step: int, **content: Any) -> None:
        from tensorboardX.proto import event_pb2

        event: Any = event_pb2
        self._file.write_event(event.Event(step=step, wall_time=time.time(), **content))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
