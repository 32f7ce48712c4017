"""Communication between the processes of one run, on one or several hosts.

With a single process, nothing is communicated.
"""

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import PyTree

from jaxformer.errors import UserError
from jaxformer.runs.watchdog import HEARTBEAT_TIMEOUT
from jaxformer.waits import log_stream

_JOIN_SECONDS = 300.0  # time in which all processes must join
# Reports of a process that waits for the others.
_FIRST_REPORT_SECONDS = 2.0
_REPORT_SECONDS = 60.0


def join_processes(
    address: str | None,
    count: int | None,
    process_id: int | None,
) -> None:
    """Connects this process with all others of a run, and reports that it waits for them.

    Args:
      address: HOST:PORT of process 0; None asks the cluster for all three.
      count: Number of processes.
      process_id: Number of this process, from 0.

    Raises:
      TimeoutError: The others did not join in time.
      RuntimeError, ValueError: jax cannot join processes here.
    """
    failures: list[Exception] = []

    def initialize() -> None:
        try:
            # A timeout of jax would abort the process with a stack trace (jax 0.12).
            jax.distributed.initialize(
                address,
                count,
                process_id,
                initialization_timeout=int(2 * _JOIN_SECONDS),
                heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT,
            )
        except Exception as error:
            failures.append(error)

    # Not in the main thread, which Ctrl-C could not interrupt during a call of C++.
    thread = threading.Thread(target=initialize, name="join", daemon=True)
    thread.start()
    _wait_for_others(thread, _describe_others(address, count))
    if failures:
        raise failures[0]


def _describe_others(address: str | None, count: int | None) -> str:
    if address is None or count is None:
        return "the other processes of the cluster"
    # Only process 0 knows how many have joined, and jax does not tell.
    number = "1" if count == 2 else f"up to {count - 1}"
    return f"{number} of {count} processes at {address}"


def _wait_for_others(thread: threading.Thread, others: str) -> None:
    began = time.monotonic()
    thread.join(_FIRST_REPORT_SECONDS)
    while thread.is_alive():
        seconds = time.monotonic() - began
        if seconds >= _JOIN_SECONDS:
            raise TimeoutError(
                f"waited {seconds:.0f} s for {others}; run the same command on every host, each "
                "with its own --process_id, and check that all hosts can reach the first one"
            )
        print(f"waiting for {others}", file=log_stream(), flush=True)
        thread.join(min(_REPORT_SECONDS, _JOIN_SECONDS - seconds))


def is_primary() -> bool:
    """Returns whether this is process 0, which writes files and reports."""
    return jax.process_index() == 0


def all_gather(value: Any) -> list[Any]:
    """Returns the values of all processes, in process order. They must be serializable as JSON."""
    if jax.process_count() == 1:
        return [value]

    text = json.dumps(value)
    mine = np.frombuffer(text.encode(), np.uint8)
    length = np.array(mine.size, np.int32)
    lengths = multihost_utils.process_allgather(length)

    # Arrays of all processes have one shape.
    padded = np.zeros(lengths.max(), np.uint8)
    padded[: mine.size] = mine
    texts = multihost_utils.process_allgather(padded)

    values = []
    for text, length in zip(texts, lengths, strict=True):
        values.append(json.loads(text[:length].tobytes()))
    return values


def on_primary(action: Callable[[], object]) -> None:
    """Runs the action on process 0 while the others wait; all raise its UserError or OSError."""
    failure = None
    if is_primary():
        try:
            action()
        except (UserError, OSError) as error:
            failure = (isinstance(error, UserError), str(error))

    failure_of_primary = all_gather(failure)[0]
    if failure_of_primary:
        is_user_error, message = failure_of_primary
        raise UserError(message) if is_user_error else OSError(message)


def check_agreement(facts: dict[str, str]) -> None:
    """Raises a UserError on every process if two of them were started with different values."""
    everywhere = all_gather(facts)
    for name, fact in everywhere[0].items():
        for process, others in enumerate(everywhere):
            if others[name] != fact:
                raise UserError(
                    f"process {process} was started with another {name} than process 0: expected "
                    f"{fact}, got {others[name]}; give all hosts the same"
                )


def on_this_host(tree: PyTree) -> PyTree:
    """Returns global arrays as whole NumPy arrays, on every process."""
    return multihost_utils.process_allgather(tree, tiled=True)
