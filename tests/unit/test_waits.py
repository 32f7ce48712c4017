"""Slow work is announced by one line; fast work is silent."""

import io
import sys
import time

import pytest

from jaxformer import waits


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(waits, "SECONDS", 0.05)


def test_slow_work_is_announced_once_while_it_runs(capsys):
    with waits.announce("reading the data"):
        time.sleep(0.3)
        assert capsys.readouterr().err == "reading the data ...\n"
    assert capsys.readouterr().err == ""


def test_fast_and_failed_work_is_silent(capsys):
    with waits.announce("reading the data"):
        pass
    with pytest.raises(ZeroDivisionError), waits.announce("dividing"):
        _ = 1 / 0

    time.sleep(0.2)
    assert capsys.readouterr().err == ""


def test_work_goes_on_if_the_line_cannot_be_written(monkeypatch, tmp_path):
    with (tmp_path / "log").open("w") as log:
        monkeypatch.setattr("sys.stderr", log)

    # The file is closed.
    with waits.announce("reading the data"):
        time.sleep(0.2)


def test_lines_go_to_standard_error_but_in_notebooks_to_standard_output(monkeypatch):
    assert waits.log_stream() is sys.stderr

    class OutStream(io.StringIO):
        __module__ = "ipykernel.iostream"  # where ipykernel has the streams of a cell

    monkeypatch.setattr("sys.stderr", OutStream())
    assert waits.log_stream() is sys.stdout
