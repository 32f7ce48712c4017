"""Ends the processes of a run when one of them is lost or stuck.

In every step each process waits for all others. If one is lost, jax aborts the others once its
heartbeats are missing for :data:`HEARTBEAT_TIMEOUT`, or at once if it is process 0. If one is
stuck, all make no progress, and a thread in each of them ends it after the stall timeout. In both
cases a process prints the stacks of its threads and the cause, and exits with
:data:`~jaxformer.errors.RESUMABLE`.
"""

import contextlib
import ctypes
import faulthandler
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

import jax

from jaxformer.errors import RESUMABLE

# Seconds after which jax takes a process for lost that sends no heartbeats; its own default is 100.
HEARTBEAT_TIMEOUT = 15
_TICK = 1.0

_current: "_StallTimer | None" = None
_handlers: list[object] = []


@contextlib.contextmanager
def watch(stall_timeout: float) -> Iterator[None]:
    """Watches this process during the block; within another such block, does nothing.

    With a single process, the stacks are printed once it is stuck, and it is not ended.

    Args:
      stall_timeout: Seconds without :func:`progress` after which a process is stuck.
    """
    global _current
    if _current is not None:
        yield
        return
    if jax.process_count() > 1:
        _make_aborts_resumable()
    _current = _StallTimer(stall_timeout)
    try:
        yield
    except jax.errors.JaxRuntimeError:
        if jax.process_count() > 1:
            # On CPUs a computation fails if another process is lost, before jax notices the loss.
            progress("a failed computation", limited=False)
            time.sleep(HEARTBEAT_TIMEOUT + 5)
        raise
    finally:
        _current.stop()
        _current = None


def progress(what: str, *, limited: bool = True) -> None:
    """Records that the main thread has made progress.

    Args:
      what: What it has reached, such as "step 10".
      limited: Whether it must make further progress within the stall timeout.
    """
    if _current is not None:
        _current.reached = (what, time.monotonic() if limited else None)


class _StallTimer:
    """A thread that notices when the main thread is stuck.

    Attributes:
      reached: What the main thread has reached, and since when; None for the time if its next
        progress may take any time.
    """

    def __init__(self, timeout: float) -> None:
        self.reached: tuple[str, float | None] = ("the start", None)
        self._timeout, self._alone = timeout, jax.process_count() == 1
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        if not self._alone:
            faulthandler.cancel_dump_traceback_later()

    def _watch(self) -> None:
        reported = None
        while not self._stopped.wait(_TICK):
            what, since = self.reached
            if not self._alone:
                self._limit_held_interpreter(since is not None)
            if since is None or time.monotonic() - since < self._timeout or since == reported:
                continue
            reported = since
            cause = f"no progress for {self._timeout:g} s (stall_timeout) after {what}"
            _print_stacks(f"{cause}; the stacks of all threads are above")
            if not self._alone:
                os._exit(RESUMABLE)

    def _limit_held_interpreter(self, limited: bool) -> None:
        """Ends the process with exit code 1 if a call into C holds the interpreter even longer.

        No thread of Python can run then, and jax's heartbeats continue.
        """
        if limited:
            faulthandler.dump_traceback_later(self._timeout + 5, exit=True)
        else:
            faulthandler.cancel_dump_traceback_later()


def _print_stacks(message: str) -> None:
    """Prints the stacks of all threads, and a line; works while the main thread is stuck."""
    with contextlib.suppress(OSError, ValueError):
        faulthandler.dump_traceback(2)
        os.write(2, f"{message}\n".encode())


@functools.cache
def _make_aborts_resumable() -> None:
    """Makes jax's abort end the process with RESUMABLE instead of SIGABRT.

    jax calls ``abort()`` in a thread of its own when it has lost a process (jax 0.10.1, 0.12), and
    a handler of Python's ``signal`` would not run anymore. jax 0.7.2 exits with code 1 instead.
    """

    def on_abort(_: int) -> None:
        causes = "another process is lost, or this one has crashed: see above"
        _print_stacks(f"{causes}; the same command resumes the run")
        os._exit(RESUMABLE)

    if sys.platform != "win32":
        handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(on_abort)
        _handlers.append(handler)  # C calls it as long as the process lives.
        ctypes.CDLL(None).signal(signal.SIGABRT, handler)
