"""Signals that stop a run after it has saved its state."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, NoReturn

import jax
from jax.experimental import multihost_utils
from jaxtyping import PyTree

from jaxformer.errors import StoppedError
from jaxformer.runs import processes

# A closing terminal sends SIGHUP, often twice. Windows has no such signal.
_HANG_UP = getattr(signal, "SIGHUP", None)


class StopSignals:
    """Collects SIGTERM (preemption), SIGINT and SIGHUP instead of ending the process.

    A second SIGTERM or SIGINT still ends the process. If SIGHUP was ignored, as under nohup, it
    stays ignored. With several processes, jax handles SIGTERM and lets them agree on a step; the
    other signals are forwarded as SIGTERM.
    """

    def __init__(self) -> None:
        self.received: list[signal.Signals] = []  # in the order of arrival
        self._alone = jax.process_count() == 1
        self._at_once = False  # whether a signal raises an error
        # Calls of should_stop, and whether several processes have reached their last step.
        self._calls = 0
        self._reached = False
        self._old: dict[int, Any] = {}  # handlers to restore

    def __enter__(self) -> "StopSignals":
        numbers = [signal.SIGINT]
        if self._alone:
            numbers = [signal.SIGTERM, signal.SIGINT]
        if _HANG_UP is not None and signal.getsignal(_HANG_UP) != signal.SIG_IGN:
            numbers.append(_HANG_UP)

        # Only the main thread may install handlers.
        if threading.current_thread() is threading.main_thread():
            for number in numbers:
                self._old[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, previous in self._old.items():
            signal.signal(number, previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        is_repeated = any(earlier != _HANG_UP for earlier in self.received)
        if number != _HANG_UP and is_repeated:
            error = KeyboardInterrupt if number == signal.SIGINT else StoppedError
            raise error("stopped at once; the same command resumes from the newest checkpoint")

        self.received.append(signal.Signals(number))
        if self._at_once:
            self._at_once = False
            self._check()

        # Jax lets the processes agree on a step after a SIGTERM.
        if not self._alone and len(self.received) == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    def _check(self) -> None:
        if self._alone and self.received:
            raise StoppedError(
                f"{self.received[0].name}: nothing to save; the same command resumes the run"
            )

    def should_stop(self) -> bool:
        """Returns whether to stop here, equally on all processes.

        All processes must call it equally often, or else :meth:`agree_to_stop` before the next.
        """
        if self._alone:
            return bool(self.received)

        self._calls += 1
        if not self._reached:
            self._reached = multihost_utils.reached_preemption_sync_point(self._calls)
        return self._reached

    def agree_to_stop(self, stopped: bool) -> bool:
        """Returns whether :meth:`should_stop` was true on any process; ``stopped`` is for this one.

        Makes up for calls that some processes have not made.
        """
        if self._alone:
            return stopped

        everywhere = processes.all_gather((self._calls, self._reached))
        self._calls = max(calls for calls, _ in everywhere)
        self._reached = any(reached for _, reached in everywhere)
        return self._reached

    def end_run(self, step: int) -> NoReturn:
        """Ends a run whose state is saved, on all processes."""
        name = self.received[0].name if self.received else "SIGTERM"
        saved = "no step was taken; the same command starts again"
        if step:
            saved = f"step {step} is saved; the same command resumes there"
        raise StoppedError(f"{name}: {saved}")

    @contextlib.contextmanager
    def raise_at_once(self) -> Iterator[None]:
        """Raises StoppedError within the block as soon as a signal arrives or if one has arrived.

        Only Python code can be interrupted: a running compilation is finished first. Several
        processes continue until they have agreed on a last step.
        """
        self._at_once = True
        try:
            self._check()
            yield
        finally:
            self._at_once = False

    def until_stopped(self, batches: Iterator[PyTree]) -> Iterator[PyTree]:
        """Yields batches until a signal arrives, even while waiting for a batch."""
        while True:
            try:
                with self.raise_at_once():
                    batch = next(batches, None)
            except StoppedError:
                return

            if batch is None:
                return
            yield batch
