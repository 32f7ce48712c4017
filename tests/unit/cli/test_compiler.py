"""Checks for known defects of the compiler."""

import platform

import jaxlib
import pytest

from jaxformer.cli import compiler


def outcomes(monkeypatch, *programs, seconds=60):
    defects = [compiler.Defect("issue", "sums", program) for program in programs]
    monkeypatch.setattr(compiler, "DEFECTS", defects)
    monkeypatch.setattr(compiler, "_TIMEOUT_SECONDS", seconds)
    return list(compiler.check_compiler())[:-1]


def test_right_and_wrong_results_and_crashes_are_distinguished(monkeypatch):
    assert outcomes(
        monkeypatch, "print(0)", "print(7232)", "import os; os.kill(os.getpid(), 11)"
    ) == [
        "sums: right (issue)",
        "sums: WRONG in 7,232 places (issue)",
        "sums: CRASHES with exit code -11 (issue)",
    ]


def test_a_hanging_program_is_killed(monkeypatch):
    found = outcomes(monkeypatch, "import time; time.sleep(60)", seconds=0.1)
    assert found == ["sums: HANGS for more than 0.1 s (issue)"]


@pytest.mark.ci
@pytest.mark.skipif(
    (jaxlib.__version__, platform.machine()) != ("0.10.2", "x86_64"),
    reason="only jaxlib 0.10.2 for x86-64 is known to have both defects",
)
def test_the_defects_of_jaxlib_0_10_2_are_found(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS")
    rows, axes, _ = compiler.check_compiler()
    assert "WRONG in 7,232 places" in rows
    assert "CRASHES" in axes or "HANGS" in axes
