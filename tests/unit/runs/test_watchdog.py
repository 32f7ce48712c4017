"""Stalls of a single process; test_processes.py has several processes."""

import time

from jaxformer.runs import watchdog


def test_a_stuck_process_prints_its_stacks_once_and_continues(capfd, monkeypatch):
    monkeypatch.setattr(watchdog, "_POLL_SECONDS", 0.05)

    with watchdog.watch(0.2):
        watchdog.record_progress("step 7")
        time.sleep(0.6)
        watchdog.record_progress("step 8")

    said = capfd.readouterr().err
    assert said.count("no progress for 0.2 s (stall_timeout) after step 7") == 1
    assert "test_watchdog.py" in said  # where the main thread was
    assert "step 8" not in said
