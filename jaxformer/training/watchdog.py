"""A thread in every process that notices when a process of the run is lost, failed or stuck.

In every step each process waits for all others. If one is killed, raises an exception, is stopped
or gets stuck, the others would wait for minutes or for ever. Instead they print the stacks of their
threads and the cause, and exit: with :data:`~jaxformer.errors.RESUMABLE`, or with 1 after an
exception.

Process 0 has a TCP connection to each other process. The kernel closes the connections of a process
that ends in any way. Over them, each process reports its progress every second.
"""

import contextlib
import ctypes
import dataclasses
import faulthandler
import functools
import json
import os
import selectors
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

import jax

from jaxformer.errors import RESUMABLE, exit_code
from jaxformer.training.connections import connect

_TICK = 1.0
# Time in which processes that all fail for the same reason may report it themselves.
_GRACE = 2.0
# A failed collective means that another process failed; time in which its failure becomes known.
_SUSPICION = 1.5
# Time without a report after which a process is not merely slow.
_SILENCE = 5.0
# Time in which an exception must have ended its own process.
_LONGEST_FAILURE = 10.0

_current: "Watchdog | None" = None


@contextlib.contextmanager
def watch(stall_timeout: float) -> Iterator[None]:
    """Watches all processes of the run during the block; within another such block, does nothing.

    With a single process, the stacks are printed once it is stuck, and it is not ended.

    Args:
      stall_timeout: Seconds without :func:`progress` after which a process is stuck.
    """
    global _current
    if _current is not None:
        yield
        return
    _current = Watchdog(stall_timeout, connect())
    try:
        with announcing_errors():
            yield
    finally:
        _current.close()
        _current = None


def progress(what: str, *, limited: bool = True) -> None:
    """Records that the main thread has made progress. All processes call it equally often.

    Args:
      what: What it has reached, such as "step 10".
      limited: Whether it must make further progress within the stall timeout.
    """
    if _current is not None:
        _current.progress(what, limited)


@contextlib.contextmanager
def announcing_errors() -> Iterator[None]:
    """Tells all other processes if the block raises an exception, before any cleanup."""
    try:
        yield
    except BaseException as error:
        if _current is not None:
            _current.announce(error)
        raise


def stop_together() -> None:
    """Records that all processes have agreed to stop here; the exception is not announced."""
    if _current is not None:
        _current.stop_together()


@contextlib.contextmanager
def unlimited(what: str) -> Iterator[None]:
    """Lets the block take any time, even while an exception ends the process.

    Args:
      what: As in :func:`progress`.
    """
    if _current is None:
        yield
        return
    _current.progress(what, limited=False)
    with _current.failure_unlimited():
        yield


class _Progress(NamedTuple):
    """State of the main thread of a process.

    Attributes:
      process: Number of the process.
      reached: What it had reached when it last made progress.
      count: How often it has made progress.
      idle: Seconds since then; None if the next progress may take any time.
      silent: Whether not even its watching thread has reported for some time.
    """

    process: int
    reached: str
    count: int
    idle: float | None
    silent: bool = False


@dataclasses.dataclass(eq=False)
class _Peer:
    """A connected process and its last report."""

    connection: socket.socket
    last: _Progress
    heard: float
    unread: bytes = b""
    leaving: bool = False

    def progress(self) -> _Progress:
        silence = time.monotonic() - self.heard
        if silence < _SILENCE:
            return self.last
        return self.last._replace(idle=(self.last.idle or 0) + silence, silent=True)


class Watchdog:
    """The watching thread of this process."""

    def __init__(self, stall_timeout: float, connections: dict[int, socket.socket]) -> None:
        self._timeout, self._me = stall_timeout, jax.process_index()
        self._alone = jax.process_count() == 1
        self._progress: tuple[str, int, float | None] = ("the start", 0, None)
        now = time.monotonic()
        self._peers = [
            _Peer(connection, _Progress(process, "the start", 0, None), now)
            for process, connection in connections.items()
        ]
        self._lock = threading.Lock()
        self._left = self._collective_failed = False
        self._stopping = False
        self._cause: str | None = None
        self._code, self._deadline = RESUMABLE, 0.0
        self._reported = -1
        self._error: BaseException | None = None
        self._failure = threading.Timer(0, lambda: None)
        if not self._alone:
            _survive_loss_of_coordinator()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def progress(self, what: str, limited: bool) -> None:
        self._progress = (what, self._progress[1] + 1, time.monotonic() if limited else None)

    def stop_together(self) -> None:
        self._stopping = True

    def announce(self, error: BaseException) -> None:
        """Tells the other processes that this one has failed and is about to end."""
        if self._left or self._stopping:
            return
        if self._peers and isinstance(error, jax.errors.JaxRuntimeError):
            self._collective_failed = True
            time.sleep(_SUSPICION)  # The thread ends the process if another one is the cause.
        text = f"{type(error).__name__}: {error}".split("\n")[0][:300]
        cause = f"process {self._me} raised {text} after {self._progress[0]}"
        self._send({"end": cause, "at_once": False})
        self._stop()
        self._error = error
        self._limit_failure()

    def _limit_failure(self) -> None:
        """Ends the process if its exception does not within some time, as it waits for others."""
        if self._error is not None and not self._alone:
            self._failure = threading.Timer(_LONGEST_FAILURE, _exit_with, [self._error])
            self._failure.daemon = True
            self._failure.start()

    @contextlib.contextmanager
    def failure_unlimited(self) -> Iterator[None]:
        self._failure.cancel()
        try:
            yield
        finally:
            self._limit_failure()

    def close(self) -> None:
        """Leaves the other processes in peace, and stops watching.

        The others first wait until process 0 leaves, because it would not survive their end (jax
        0.10.2). It may be making the last copy of the run.
        """
        self._send({"left": True})
        while self._me != 0 and not self._left and not all(peer.leaving for peer in self._peers):
            time.sleep(0.1)
        self._stop()
        self._failure.cancel()

    def _stop(self) -> None:
        with self._lock:
            self._left = True
            if not self._alone:
                faulthandler.cancel_dump_traceback_later()

    def _watch(self) -> None:
        next_report = 0.0
        while not self._left:
            self._receive(_TICK if self._cause is None else 0.1)
            if self._cause is None and time.monotonic() > next_report:
                next_report = time.monotonic() + _TICK
                self._limit_held_interpreter()
                self._report_progress()
                self._check_stalls()
            due = self._collective_failed or time.monotonic() > self._deadline
            if self._cause is not None and due and not self._left:
                self._end(self._cause)
        for peer in self._peers:
            peer.connection.close()

    def _limit_held_interpreter(self) -> None:
        """Ends the process, without the interpreter, if a call holds it even longer."""
        with self._lock:
            if self._left or self._alone:
                return
            if self._progress[2] is None:
                faulthandler.cancel_dump_traceback_later()
            else:
                faulthandler.dump_traceback_later(self._timeout + _SILENCE, exit=True)

    def _mine(self) -> _Progress:
        reached, count, since = self._progress
        idle = None if since is None else time.monotonic() - since
        return _Progress(self._me, reached, count, idle)

    def _report_progress(self) -> None:
        _, reached, count, idle, _ = self._mine()
        self._send({"reached": reached, "count": count, "idle": idle})

    def _send(self, message: dict[str, Any]) -> None:
        line = json.dumps(message).encode() + b"\n"
        with self._lock:
            if self._left:
                return
            for peer in self._peers:
                # A full buffer means that the process is stopped, an error that it is gone.
                with contextlib.suppress(OSError):
                    peer.connection.send(line)

    def _receive(self, timeout: float) -> None:
        with selectors.DefaultSelector() as selector:
            for peer in self._peers:
                selector.register(peer.connection, selectors.EVENT_READ, peer)
            ready = [key.data for key, _ in selector.select(timeout)]
        for peer in ready:
            try:
                data = peer.connection.recv(65536)
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            *lines, peer.unread = (peer.unread + data).split(b"\n")
            for line in lines:
                self._understand(peer, json.loads(line))
            if not data:
                self._drop(peer)

    def _understand(self, peer: _Peer, message: dict[str, Any]) -> None:
        peer.heard = time.monotonic()
        if "end" in message:
            peer.leaving = True
            self._plan_end(message["end"], at_once=message["at_once"])
        elif "left" in message:
            peer.leaving = True
        else:
            peer.last = peer.last._replace(**message)

    def _drop(self, peer: _Peer) -> None:
        with self._lock:
            self._peers.remove(peer)
            peer.connection.close()
        if not peer.leaving:
            cause = f"process {peer.last.process} is gone (killed, crashed, or unreachable)"
            self._plan_end(f"{cause} after {peer.last.reached}", at_once=True)

    def _check_stalls(self) -> None:
        """Ends the run if all processes wait for one: a silent one, or the one that is behind.

        Process 0 knows of all. The others know only of process 0, and may judge only its silence.
        """
        known = [self._mine(), *(peer.progress() for peer in self._peers)]
        if any(one.idle is None or one.idle < self._timeout for one in known):
            return
        last = min(known, key=lambda one: (not one.silent, one.count))
        if self._alone:
            self._report_stall(last)
        elif self._me == 0 or last.silent:
            silent = "; it is stopped, or a call holds its interpreter" if last.silent else ""
            self._plan_end(
                f"process {last.process} has made no progress for {self._timeout:g} s "
                f"(stall_timeout) after {last.reached}{silent}",
                at_once=True,
            )

    def _report_stall(self, mine: _Progress) -> None:
        """Prints the stacks of a single process once; it may still make progress."""
        if mine.count != self._reported:
            self._reported = mine.count
            _print_stacks(
                f"no progress for {self._timeout:g} s (stall_timeout) after {mine.reached}; the "
                "stacks of all threads are above"
            )

    def _plan_end(self, cause: str, *, at_once: bool) -> None:
        """Ends this process and tells the others; only the first cause counts."""
        if self._cause is None:
            self._cause, self._code = cause, RESUMABLE if at_once else 1
            self._deadline = time.monotonic() + (0 if at_once else _GRACE)
            self._send({"end": cause, "at_once": at_once})
        elif at_once:
            self._deadline = 0.0

    def _end(self, cause: str) -> NoReturn:
        hint = "the same command resumes the run" if self._code == RESUMABLE else "see its messages"
        _print_stacks(f"{cause}; {hint}")
        # Process 0 ends last, because jax in the others aborts when it is gone.
        until = time.monotonic() + _GRACE
        while self._me == 0 and self._peers and time.monotonic() < until:
            self._receive(0.1)
        os._exit(self._code)


def _print_stacks(message: str) -> None:
    """Prints the stacks of all threads, and a line; works while the main thread is stuck."""
    with contextlib.suppress(OSError, ValueError):
        faulthandler.dump_traceback(2)
        os.write(2, f"{message}\n".encode())


def _exit_with(error: BaseException) -> None:
    """Ends a process that an exception could not end, as it waits for the others."""

    def fail() -> NoReturn:
        raise error

    try:
        code = exit_code(fail)
    except BaseException:
        traceback.print_exception(error)
        code = 1
    os._exit(code)


@functools.cache
def _survive_loss_of_coordinator() -> None:
    """Gives the watchdog time to report that process 0 is gone.

    jax calls abort() at once, in a thread of its own (jax 0.10.2). A handler of SIGABRT delays it,
    here by 6 seconds, because the handler's argument is the number of the signal. Then abort()
    continues.
    """
    if sys.platform != "win32":
        libc = ctypes.CDLL(None)
        libc.signal(signal.SIGABRT, libc.sleep)
