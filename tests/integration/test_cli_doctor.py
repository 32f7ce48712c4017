"""The command ``doctor``: bug reports, and the memory that an experiment needs."""

import importlib.metadata
import pathlib
import re
import subprocess
import sys

import jax
import pytest

import jaxformer
from jaxformer.cli import main

PROJECT = pathlib.Path(__file__).parents[2]
SMALL = [
    f"--config={PROJECT / 'configs' / 'base.py'}:tiny",
    *("--config.model.vocab_size=100", "--config.model.d_model=16", "--config.model.d_ff=32"),
    *("--config.model.num_layers=1", "--config.data.tokens_per_batch=2048"),
]


def test_a_bug_report_has_no_secrets_and_survives_failing_sections(capsys, monkeypatch, tmp_path):
    def broken():
        raise RuntimeError("no TPU")

    monkeypatch.setattr(jax, "local_devices", broken)
    for name, value in (
        *(("JAX_ENABLE_X64", "0"), ("JAXFORMER_CACHE", str(tmp_path)), ("AWS_SECRET", "xyz")),
        *(("MY_JAX_KEY", "k"), ("JAXFORMER_NOTE", "not UTF-8: \udcf6")),
    ):
        monkeypatch.setenv(name, value)
    assert main(["doctor"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    sections = re.findall(r"^(\S.*):\n((?:  .*\n)+)", out, re.MULTILINE)
    assert "".join(f"{title}:\n{lines}" for title, lines in sections) == out
    found = {title: text.splitlines() for title, text in sections}
    assert found["versions"][0].startswith(f"  jaxformer {jaxformer.__version__} in ")
    for name in ("jax", "flax", "orbax-checkpoint", "numpy"):
        assert f"  {name} {importlib.metadata.version(name)}" in found["versions"]
    assert found["machine"][-1] == "  failed with RuntimeError: no TPU"
    variables = dict(line[2:].split("=", 1) for line in found["environment variables"])
    assert variables["JAX_ENABLE_X64"] == "0"
    assert variables["JAXFORMER_NOTE"] == r"not UTF-8: \udcf6"
    assert not {"AWS_SECRET", "MY_JAX_KEY", "PATH", "HOME"} & variables.keys()


def test_the_package_is_a_command_and_has_a_version():
    command = [sys.executable, "-m", "jaxformer", "--version"]
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    assert finished.stdout == f"jaxformer {jaxformer.__version__}\n"


@pytest.mark.ci
def test_a_step_is_measured_on_simulated_devices():
    command = [sys.executable, "-m", "jaxformer.cli", "doctor", *SMALL, "--memory", "1GiB"]
    finished = subprocess.run([*command, "--devices", "3"], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    first, second = finished.stdout.splitlines()
    assert first == (
        "A step of 2,048 tokens per side in sentences of 128, on 3 cpu device(s). "
        "Each has 1.07 GB and needs:"
    )
    assert second.endswith(" fits: as it is")


def test_mistakes(capsys):
    for arguments, words in (
        (["--memory", "16GB"], "--memory needs --config FILE"),
        ([*SMALL, "--memory", "16"], "--memory: expected a size such as 16GB or 16GiB, got '16'"),
        ([*SMALL, "--devices", "0"], "--devices must be at least 1: got 0"),
    ):
        assert main(["doctor", *arguments]) == 2
        assert words in capsys.readouterr().err
