"""What a run says while it goes on: terminal, metrics.jsonl, and TensorBoard if it is there."""

import json
import os
import sys
import time
from typing import IO, Any

from tqdm import tqdm

from jaxformer.workdir import Workdir


class Reporter:
    """Reports to the terminal, to ``metrics.jsonl`` and, with the extra, to TensorBoard.

    A terminal gets a bar; a file or a pipe gets plain lines.
    """

    def __init__(self, folder: Workdir, *, start: int, steps: int, quiet: bool = False) -> None:
        """Goes on with the metrics of an earlier part of the run, up to its step ``start``."""
        self._steps = steps
        self._start = start
        self._began = time.monotonic()
        self._quiet = quiet
        self._bar = tqdm(
            total=steps,
            initial=start,
            unit="step",
            dynamic_ncols=True,
            disable=quiet or not sys.stderr.isatty(),
        )
        self._lines = None if quiet else _open_metrics(folder, start)
        self._tensorboard = None if quiet else _open_tensorboard(folder)

    def __enter__(self) -> "Reporter":
        """Nothing to do: files were opened on construction."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Closes bar and files."""
        self._bar.close()
        for file in (self._lines, self._tensorboard):
            if file is not None:
                file.close()

    def say(self, message: str) -> None:
        """Prints one line, above the bar if there is one."""
        if not self._quiet:
            tqdm.write(message, file=sys.stderr)

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
            self._bar.n = step
            self._bar.set_postfix_str(", ".join(parts))
        else:
            self.say(f"step {step}/{self._steps}  {'  '.join(parts)}  {self._time_left(step)} left")

    def valid(self, step: int, values: dict[str, float]) -> None:
        """Reports one validation."""
        self._record("valid", step, values)
        text = f"loss {values['loss']:.3f}  ppl {values['perplexity']:.2f}"
        if "bleu" in values:
            text += f"  BLEU {values['bleu']:.2f}  exact {values['exact_match']:.1f} %"
        self.say(f"step {step}/{self._steps}  validation: {text}")

    def _record(self, kind: str, step: int, values: dict[str, float]) -> None:
        if self._lines is not None:
            print(json.dumps({"kind": kind, "step": step, **values}), file=self._lines, flush=True)
        if self._tensorboard is not None:
            for name, value in values.items():
                self._tensorboard.add_scalar(f"{kind}/{name}", value, step)

    def _time_left(self, step: int) -> str:
        seconds = (time.monotonic() - self._began) / max(1, step - self._start)
        return tqdm.format_interval(int(seconds * (self._steps - step)))


def _open_metrics(folder: Workdir, start: int) -> IO[str]:
    """Drops reports from after the checkpoint that the run resumes from, and a torn last line."""
    kept = []
    if folder.metrics.exists():
        for line in folder.metrics.read_text(encoding="utf-8", errors="replace").split("\n"):
            try:
                if json.loads(line)["step"] <= start:
                    kept.append(line + "\n")
            except (ValueError, KeyError, TypeError):
                continue
    partial = folder.metrics.with_name(folder.metrics.name + ".partial")
    partial.write_text("".join(kept), encoding="utf-8")
    os.replace(partial, folder.metrics)
    return folder.metrics.open("a", encoding="utf-8")


def _open_tensorboard(folder: Workdir) -> Any:
    try:
        import tensorboardX  # the extra [tensorboard]
    except ImportError:
        return None
    return tensorboardX.SummaryWriter(str(folder.tensorboard))
