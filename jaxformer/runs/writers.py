"""Writers of reports: the terminal, ``metrics.jsonl``, TensorBoard, and user-defined writers."""

import importlib.util
import json
import math
import pathlib
import string
import sys
import time
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

from tqdm import tqdm

from jaxformer.files import open_file, write_file
from jaxformer.progress import ProgressBar
from jaxformer.runs.processes import is_primary
from jaxformer.runs.workdir import Workdir
from jaxformer.waits import log_stream

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
    "loss_scale": "scale {:,.0f}",
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

    def __init__(
        self,
        start: int,
        steps: int,
        formats: Mapping[str, str] | None = None,
    ) -> None:
        self._start = start
        self._steps = steps
        self._formats = {**_FORMATS, **(formats or {})}
        # For the estimate of the time left.
        self._began = time.monotonic()
        self._reported = start  # the last step reported
        self._training = 0.0  # seconds of steps

        is_shown = sys.stderr.isatty() and is_primary()
        self._bar = ProgressBar(
            total=steps,
            initial=start,
            unit="step",
            dynamic_ncols=True,
            disable=not is_shown,
        )

    def log(self, message: str) -> None:
        """Prints a message, above the bar if there is one."""
        if is_primary():
            tqdm.write(message, file=log_stream())

    def advance(self, step: int) -> None:
        self._bar.update(step - self._bar.n)

    def exclude_compilation(self, seconds: float) -> None:
        """Leaves seconds that will not come again out of the estimate of the time left."""
        self._began += seconds

    def write(self, step: int, kind: str, values: Values) -> None:
        parts = self._format(values)
        place = f"step {step}/{self._steps}"
        text = "  ".join(parts)
        if kind == "valid":
            self.log(f"{place}  validation: {text}")
        elif not self._bar.disable:
            self._bar.values = parts
            self._bar.refresh()
        else:
            seconds = self._seconds_left(step, values["seconds_per_step"])
            left = tqdm.format_interval(int(seconds))
            self.log(f"{place}  {text}  {left} left")

    def _format(self, values: Values) -> list[str]:
        """Returns the texts of values that are not hidden."""
        parts = []
        for name, value in values.items():
            if name not in self._formats:
                parts.append(f"{name} {value:.4g}")
            elif self._formats[name] != "":
                parts.append(self._formats[name].format(value))
        return parts

    def compare(self, before: Values, after: Values) -> None:
        """Prints a table of the values of two validations, named as in their lines."""
        names = {name: self._describe(name) for name in after if self._formats.get(name) != ""}
        title = "validation"
        width = max(map(len, (title, *names.values())))
        lines = [f"{title:{width}}  {'before':>9}  {'after':>9}"]
        for name, text in names.items():
            old = before.get(name, math.nan)
            lines.append(f"{text:{width}}  {old:9.4g}  {after[name]:9.4g}")
        self.log("\n".join(lines))

    def _describe(self, name: str) -> str:
        """Returns the format of a value without the value, such as "ppl"."""
        parts = string.Formatter().parse(self._formats.get(name, name))
        text = "".join(literal for literal, *_ in parts)
        return " ".join(text.split())

    def _seconds_left(self, step: int, seconds_per_step: float) -> float:
        """Assumes steps as since the last report, and the mean of validations and checkpoints."""
        self._training += seconds_per_step * (step - self._reported)
        self._reported = step

        elapsed = time.monotonic() - self._began
        others = max(0.0, elapsed - self._training)
        others_per_step = others / max(1, step - self._start)
        steps_left = self._steps - step
        return (seconds_per_step + others_per_step) * steps_left

    def close(self) -> None:
        self._bar.close()


class MetricsFile:
    """``metrics.jsonl``: one JSON line for each report.

    A run that was killed between the report of a validation and its score repeats the validation,
    but not its report.
    """

    def __init__(self, folder: Workdir, start: int) -> None:
        """Opens the file; moves reports after ``start`` to ``metrics.after-<start>.jsonl``."""
        # Kind and step of the reports that are in the file.
        self._kept: set[tuple[str, float]] = set()
        # Reports after ``start`` that this or an earlier resumption removed; they will come again.
        self.removed: set[tuple[str, float]] = set()

        *lines, torn = _content(folder.metrics).split(b"\n")
        if _parse_report(torn) is not None:  # only the line end is missing
            lines.append(torn)

        kept = []
        cut = []
        for line in filter(bytes.strip, lines):
            report = _parse_report(line)
            if report is not None and report.made_at <= start:
                kept.append(line + b"\n")
                self._kept.add((report.kind, report.step))
            else:
                cut.append(line + b"\n")

        if cut:
            copy = folder.metrics.with_name(f"metrics.after-{start}.jsonl")
            write_file(copy, _content(copy) + b"".join(cut))
        write_file(folder.metrics, b"".join(kept))

        for path in folder.path.glob("metrics.after-*.jsonl"):
            for line in _content(path).split(b"\n"):
                report = _parse_report(line)
                if report is not None and report.made_at > start:
                    self.removed.add((report.kind, report.step))

        # Unbuffered, so that no writes are pending when a full disk ends the run.
        self._file = folder.metrics.open("ab", buffering=0)

    def write(self, step: int, kind: str, values: Values) -> bool:
        """Appends a line, null for NaN and infinity, unless it was kept; returns whether it did."""
        if (kind, step) in self._kept:
            return False

        report: dict[str, Any] = {"kind": kind, "step": step}
        for name, value in values.items():
            is_number = not isinstance(value, float) or math.isfinite(value)
            report[name] = value if is_number else None

        line = json.dumps(report).encode() + b"\n"
        try:
            while line:
                written = self._file.write(line)  # may be less than the line
                line = line[written:]
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


class _Report(NamedTuple):
    """The report in a line of ``metrics.jsonl``, without its values."""

    kind: str
    step: float
    made_at: float  # step at which it was made


def _parse_report(line: bytes) -> _Report | None:
    """Returns the report in a line, if it is one."""
    try:
        values = json.loads(line)
        kind = values.get("kind")
        step = values["step"]
        made_at = values.get("reported", step)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None

    has_steps = isinstance(step, int | float) and isinstance(made_at, int | float)
    if not isinstance(kind, str) or not has_steps:
        return None
    return _Report(kind, step, made_at)


class TensorBoard:
    """TensorBoard's event files, if the extra ``tensorboard`` is installed.

    The thread of tensorboardX's ``SummaryWriter`` ends at the first disk error, and reports then
    wait for it forever (tensorboardX 2.6.5). This class therefore writes in the caller's thread.
    """

    def __init__(self, folder: Workdir, start: int) -> None:
        self._folder = folder.tensorboard
        self._start = start
        self._file: Any = None
        self._next_flush = 0.0

    def write(self, step: int, kind: str, values: Values) -> None:
        if importlib.util.find_spec("tensorboardX") is None:
            return
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.summary import scalar

        if self._file is None:
            self._folder.mkdir(exist_ok=True)
            prefix = str(self._folder / "events")
            self._file = EventsWriter(prefix, f".{self._start}")
            # TensorBoard hides earlier events from this step on, since the run repeats them.
            self._add(self._start + 1, session_log={"status": "START"})

        for name, value in values.items():
            summary = scalar(f"{kind}/{name}", value)
            self._add(step, summary=summary)

        if time.monotonic() > self._next_flush:  # it waits for the disk
            self._file.flush()
            self._next_flush = time.monotonic() + _FLUSH_SECONDS

    def _add(self, step: int, **content: Any) -> None:
        from tensorboardX.proto import event_pb2

        protocol: Any = event_pb2
        event = protocol.Event(step=step, wall_time=time.time(), **content)
        self._file.write_event(event)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
