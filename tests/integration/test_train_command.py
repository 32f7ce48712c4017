"""``python train.py``: every mistake gives one line and exit code 2, and nothing is written."""

import pathlib
import subprocess
import sys

import pytest

from jaxformer.cli import main

PROJECT = pathlib.Path(__file__).parents[2]
BASE, MULTI30K = "--config=configs/base.py", "--config=configs/multi30k.py"
MISTAKES = [
    ("--config=configs/bas.py", "configs/bas.py: no such file; did you mean configs/base.py?"),
    (f"{BASE} --workdir=", "expected --workdir DIR"),
    (BASE, "wmt14-de-en/train-*.parquet: no such file ... jaxformer data wmt14"),
    (
        f"{MULTI30K} --config.data.train=gs://bucket/train",
        "data.train: expected a path on a local disk: got gs://bucket/train; ",
    ),
]


def run(*arguments):
    return subprocess.run(
        [sys.executable, "train.py", *arguments], cwd=PROJECT, capture_output=True, text=True
    )


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_mistakes(arguments, message, tmp_path, monkeypatch, capsys):
    """In this process: train.py is only a call of this function."""
    workdir = tmp_path / "run"
    monkeypatch.chdir(PROJECT)
    monkeypatch.setenv("JAXFORMER_DATA", "/nonexistent")
    assert main(["train", f"--workdir={workdir}", *arguments.split()]) == 2
    (error,) = (e for e in capsys.readouterr().err.split("\n") if e.startswith("error: "))
    assert all(part in error for part in message.split(" ... "))
    assert not workdir.exists()


def test_the_script_has_help_and_exit_codes(tmp_path):
    """A process that gets --coordinator ends in a way of its own."""
    shown = run("--help")
    assert shown.stdout.startswith("usage: python train.py NAME|FILE.py --workdir DIR ")
    assert "python train.py is the same as jaxformer train" in shown.stdout
    others = ("--coordinator=localhost:9", "--num_processes=2", "--process_id=2")
    refused = run("numerals", f"--workdir={tmp_path / 'run'}", *others)
    assert refused.returncode == 2
    assert "error: --coordinator=HOST:PORT needs" in refused.stderr
    assert "--process_id=0 to N-1: got localhost:9, 2 and 2" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "run").exists()
