"""Signals that ask a run to stop: it saves its state first."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import jax
from jax.experimental import multihost_utils

# A closed terminal sends it, often twice; Windows has none.
_HANG_UP = getattr(signal, "SIGHUP", None)


@contextlib.contextmanager
def stop_signals() -> Iterator[list[signal.Signals]]:
    """A list that collects SIGTERM (preemption), SIGINT and SIGHUP instead of ending the process.

    A second SIGTERM or SIGINT ends the process all the same. SIGHUP stays ignored where it was, as
    nohup does. With several processes jax watches for SIGTERM, and lets them agree on a step; the
    list stays empty, and the other signals are passed on as SIGTERM.
    """
    received: list[signal.Signals] = []
    asked: list[int] = []

    def handler(number: int, frame: FrameType | None) -> None:
        if number != _HANG_UP and any(earlier != _HANG_UP for earlier in asked):
            raise KeyboardInterrupt("stopped at once; the same command goes on")
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


def asked_to_stop(received: list[signal.Signals], step: int) -> bool:
    """Whether the run ends after this step: on several hosts, the same step for all of them."""
    if jax.process_count() == 1:
        return bool(received)
    return multihost_utils.reached_preemption_sync_point(step)
