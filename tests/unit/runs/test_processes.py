"""A process of a run that waits for the others says so, and gives up."""

import threading
import time

import jax
import pytest

from jaxformer.runs import processes


@pytest.fixture
def initialize(monkeypatch):
    """Replaces jax's function, which waits for the others; returns a function to set what it does.

    Times are a hundredth of the usual ones.
    """
    for name in ("_JOIN_SECONDS", "_FIRST_REPORT_SECONDS", "_REPORT_SECONDS"):
        monkeypatch.setattr(processes, name, getattr(processes, name) / 100)
    called = {}

    def replace(action):
        def initialize(address, count, process_id, **options):
            called.update({"arguments": (address, count, process_id), **options})
            action()

        monkeypatch.setattr(jax.distributed, "initialize", initialize)
        return called

    return replace


def test_a_process_that_joins_at_once_is_silent(initialize, capsys):
    called = initialize(lambda: None)

    processes.join_processes("host:1234", 2, 1)

    assert called["arguments"] == ("host:1234", 2, 1)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("address", "count", "others"),
    [
        ("host:1234", 2, "1 of 2 processes at host:1234"),
        ("host:1234", 4, "up to 3 of 4 processes at host:1234"),
        (None, None, "the other processes of the cluster"),
    ],
)
def test_a_lone_process_says_so_and_gives_up(address, count, others, initialize, capsys):
    ended = threading.Event()
    called = initialize(lambda: ended.wait(60))
    with pytest.raises(TimeoutError, match=f"waited 3 s for {others}; run the same command on"):
        processes.join_processes(address, count, 0)
    ended.set()
    # After 0.02 s, and then every 0.6 s until 3 s.
    assert capsys.readouterr().err == f"waiting for {others}\n" * 5
    assert called["initialization_timeout"] > processes._JOIN_SECONDS  # which aborts the process


def test_a_late_process_ends_the_wait(initialize, capsys):
    initialize(lambda: time.sleep(0.2))

    processes.join_processes("host:1234", 2, 0)

    assert capsys.readouterr().err == "waiting for 1 of 2 processes at host:1234\n"


def test_errors_of_jax_are_raised(initialize):
    def fail():
        raise RuntimeError("address in use")

    initialize(fail)
    with pytest.raises(RuntimeError, match="address in use"):
        processes.join_processes("host:1234", 2, 0)
