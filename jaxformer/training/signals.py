"""Signals that ask a run to stop; it saves its state first."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import jax
from jax.experimental import multihost_utils

from jaxformer.training import hosts

# A terminal that closes sends SIGHUP, often twice; Windows has no such signal.
_HANG_UP = getattr(signal, "SIGHUP", None)


@contextlib.contextmanager
def stop_signals() -> Iterator[list[signal.Signals]]:
    """Collects SIGTERM (preemption), SIGINT and SIGHUP in a list instead of ending the process.

    A second SIGTERM or SIGINT still ends the process. If SIGHUP was ignored, as under nohup, it
    stays ignored. With several processes, jax handles SIGTERM and lets them agree on a step. The
    list then stays empty, and the other signals are forwarded as SIGTERM.
    """
    received: list[signal.Signals] = []
    asked: list[int] = []

    def handler(number: int, frame: FrameType | None) -> None:
        if number != _HANG_UP and any(earlier != _HANG_UP for earlier in asked):
            raise KeyboardInterrupt("stopped at once; the same command resumes the run")
        if alone:
            received.append(signal.Signals(number))
        elif not asked:
            os.kill(os.getpid(), signal.SIGTERM)
        asked.append(number)

    alone = jax.process_count() == 1
    # Only the main thread may install handlers.
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    numbers = [signal.SIGTERM, signal.SIGINT] if alone else [signal.SIGINT]
    if _HANG_UP is not None and signal.getsignal(_HANG_UP) != signal.SIG_IGN:
        numbers.append(_HANG_UP)
    old = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield received
    finally:
        for number, previous in old.items():
            signal.signal(number, previous)


class StopAgreement:
    """A stop at the same point on all processes, after SIGTERM on any of them."""

    def __init__(self) -> None:
        self._calls, self._reached = 0, False

    def reached(self) -> bool:
        """Returns whether to stop here. All processes call it equally often."""
        self._calls += 1
        if not self._reached:
            self._reached = multihost_utils.reached_preemption_sync_point(self._calls)
        return self._reached

    def realign(self) -> bool:
        """Returns whether any process stops, and makes up for calls that some have not made."""
        calls, reached = zip(*hosts.all_gather((self._calls, self._reached)), strict=True)
        self._calls, self._reached = max(calls), any(reached)
        return self._reached


def asked_to_stop(received: list[signal.Signals], agreement: StopAgreement) -> bool:
    """Returns whether the run ends here, which is the same on all hosts."""
    if jax.process_count() == 1:
        return bool(received)
    return agreement.reached()
