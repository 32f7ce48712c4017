"""Stalls of a single process; test_processes.py has several processes."""

import time

import pytest

from jaxformer.training import watchdog


@pytest.fixture(autouse=True)
def _fast(monkeypatch):
    monkeypatch.setattr(watchdog, "_TICK", 0.05)


def test_a_stuck_process_prints_its_stacks_once_and_continues(capfd):
    with watchdog.watch(0.2):
        watchdog.progress("step 7")
        time.sleep(0.6)
        watchdog.progress("step 8")
    said = capfd.readouterr().err
    assert said.count("no progress for 0.2 s (stall_timeout) after step 7") == 1
    assert "test_watchdog.py" in said  # where the main thread was
    assert "step 8" not in said


def test_frequent_progress_the_start_and_a_compilation_are_no_stalls(capfd):
    with watchdog.watch(0.4):
        time.sleep(0.6)
        for step in range(6):
            watchdog.progress(f"step {step}")
            time.sleep(0.1)
        watchdog.progress("compilation", limited=False)
        time.sleep(0.6)
    assert capfd.readouterr().err == ""
