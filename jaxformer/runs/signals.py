"""Signals that ask a run to stop; it saves its state first."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

import jax
from jax.experimental import multihost_utils
from jaxtyping import PyTree

from jaxformer.errors import StoppedError
from jaxformer.runs import processes

# A terminal that closes sends SIGHUP, often twice; Windows has no such signal.
_HANG_UP = getattr(signal, "SIGHUP", None)


class StopSignals:
    """Signals that ask the run to stop.

    Attributes:
      received: The signals, in the order in which they came; none with several processes.
    """

    def __init__(self) -> None:
        self.received: list[signal.Signals] = []
        self._at_once = False
        self._calls, self._reached = 0, False

    def asked(self) -> bool:
        """Returns whether to stop here, which is the same on all processes.

        All processes call it equally often, or else :meth:`agree` before the next call.
        """
        if jax.process_count() == 1:
            return bool(self.received)
        self._calls += 1
        if not self._reached:
            self._reached = multihost_utils.reached_preemption_sync_point(self._calls)
        return self._reached

    def agree(self, stopped: bool) -> bool:
        """Returns whether any process has stopped, and makes up for calls that some have not made.

        Args:
          stopped: Whether this process has stopped, because :meth:`asked` returned True.
        """
        if jax.process_count() == 1:
            return stopped
        calls, reached = zip(*processes.all_gather((self._calls, self._reached)), strict=True)
        self._calls, self._reached = max(calls), any(reached)
        return self._reached

    def add(self, number: int) -> None:
        """Adds a signal; within :meth:`at_once` it ends the block."""
        self.received.append(signal.Signals(number))
        if self._at_once:
            self._at_once = False
            self.check()

    def check(self) -> None:
        """Raises StoppedError if a signal has come."""
        if self.received:
            raise StoppedError(
                f"{self.received[0].name}: nothing to save; the same command resumes the run"
            )

    def end_run(self, step: int) -> NoReturn:
        """Ends a run whose state has been saved, on all processes."""
        name = self.received[0].name if self.received else "SIGTERM"
        saved = f"step {step} is saved" if step else "no step was taken"
        raise StoppedError(f"{name}: {saved}; the same command resumes there")

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Raises StoppedError within the block as soon as a signal comes, or came before.

        Only Python code can be interrupted: a running compilation is finished first.
        """
        self._at_once = True
        try:
            self.check()
            yield
        finally:
            self._at_once = False

    def until_stopped(self, batches: Iterator[PyTree]) -> Iterator[PyTree]:
        """Yields batches until a signal comes, even while it waits for a batch.

        Several processes continue until they have agreed on a last step.
        """
        alone = jax.process_count() == 1
        while True:
            try:
                with self.at_once() if alone else contextlib.nullcontext():
                    batch = next(batches, None)
            except StoppedError:
                return
            if batch is None:
                return
            yield batch


@contextlib.contextmanager
def stop_signals() -> Iterator[StopSignals]:
    """Collects SIGTERM (preemption), SIGINT and SIGHUP instead of ending the process.

    A second SIGTERM or SIGINT still ends the process. If SIGHUP was ignored, as under nohup, it
    stays ignored. With several processes, jax handles SIGTERM and lets them agree on a step. No
    signals are then collected, and the other ones are forwarded as SIGTERM.
    """
    stop = StopSignals()
    asked: list[int] = []

    def handler(number: int, frame: FrameType | None) -> None:
        if number != _HANG_UP and any(earlier != _HANG_UP for earlier in asked):
            error = KeyboardInterrupt if number == signal.SIGINT else StoppedError
            raise error("stopped at once; the same command resumes from the newest checkpoint")
        asked.append(number)
        if alone:
            stop.add(number)
        elif len(asked) == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    alone = jax.process_count() == 1
    # Only the main thread may install handlers.
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    numbers = [signal.SIGTERM, signal.SIGINT] if alone else [signal.SIGINT]
    if _HANG_UP is not None and signal.getsignal(_HANG_UP) != signal.SIG_IGN:
        numbers.append(_HANG_UP)
    old = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield stop
    finally:
        for number, previous in old.items():
            signal.signal(number, previous)
