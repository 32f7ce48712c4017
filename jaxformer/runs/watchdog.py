"""Ends the processes of a run when one of them is lost or stuck.

In every step each process waits for all others. If one is lost, jax aborts the others once its
heartbeats are missing for :data:`HEARTBEAT_TIMEOUT`, or at once if it is process 0. If one is
stuck, no process makes progress, and after the stall timeout a thread of each process ends it. In
both cases a process prints the stacks of its threads and the cause, and exits with
:data:`~jaxformer.errors.RESUMABLE`.
"""

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

import jax

from jaxformer.errors import RESUMABLE

# Seconds without heartbeats after which jax considers a process lost; its own default is 100.
HEARTBEAT_TIMEOUT = 15
_POLL_SECONDS = 1.0
_STDERR = 2  # a descriptor, to write without Python's buffers and locks


class _Progress(NamedTuple):
    what: str  # such as "step 10"
    since: float | None  # its time; None if the next progress may take any time


# Last progress of the main thread.
_last_progress = _Progress("the start", None)


def record_progress(what: str, *, limited: bool = True) -> None:
    """Records progress such as "step 10"; if ``limited``, more must follow within the timeout."""
    global _last_progress
    since = time.monotonic() if limited else None
    _last_progress = _Progress(what, since)


@contextlib.contextmanager
def watch(stall_timeout: float) -> Iterator[None]:
    """Watches this process during the block.

    It counts as stuck after ``stall_timeout`` seconds without :func:`record_progress`. A single
    process only prints its stacks, once, and is not ended.
    """
    has_peers = jax.process_count() > 1
    ended = threading.Event()
    if has_peers and sys.platform != "win32":
        ctypes.CDLL(None).signal(signal.SIGABRT, _on_abort)

    record_progress("the start", limited=False)
    thread = threading.Thread(
        target=_notice_stalls,
        args=(stall_timeout, has_peers, ended),
        name="watchdog",
        daemon=True,
    )
    thread.start()

    try:
        yield
    except jax.errors.JaxRuntimeError:
        if has_peers:
            # On CPUs a computation fails when another process is lost, before jax notices the loss.
            record_progress("a failed computation", limited=False)
            time.sleep(HEARTBEAT_TIMEOUT + 5)
        raise
    finally:
        ended.set()
        thread.join()
        if has_peers:
            faulthandler.cancel_dump_traceback_later()


def _notice_stalls(timeout: float, has_peers: bool, ended: threading.Event) -> None:
    """Prints the stacks if the main thread is stuck, and ends the process if it has peers."""
    reported = None  # time of the progress after which a stall was reported
    while not ended.wait(_POLL_SECONDS):
        what, since = _last_progress
        if has_peers and since is None:
            faulthandler.cancel_dump_traceback_later()
        elif has_peers:
            # Ends the process with exit code 1 if a call into C holds the interpreter even longer:
            # no thread of Python can run then, and jax's heartbeats continue.
            faulthandler.dump_traceback_later(timeout + 5, exit=True)

        if since is None or since == reported:
            continue
        if time.monotonic() - since < timeout:
            continue

        reported = since
        cause = f"no progress for {timeout:g} s (stall_timeout) after {what}"
        _print_stacks(f"{cause}; the stacks of all threads are above")
        if has_peers:
            os._exit(RESUMABLE)


def _print_stacks(message: str) -> None:
    """Prints the stacks of all threads and a message, even while the main thread is stuck."""
    with contextlib.suppress(OSError, ValueError):
        faulthandler.dump_traceback(_STDERR)
        os.write(_STDERR, f"{message}\n".encode())


@ctypes.CFUNCTYPE(None, ctypes.c_int)
def _on_abort(_: int) -> None:
    """Ends the process with RESUMABLE instead of SIGABRT.

    jax calls ``abort()`` in a thread of its own when it has lost a process (jax 0.10.1, 0.12), and
    a handler of Python's ``signal`` would not run anymore. jax 0.7.2 exits with code 1 instead.
    """
    causes = "another process is lost, or this one has crashed: see above"
    _print_stacks(f"{causes}; the same command resumes the run")
    os._exit(RESUMABLE)
