"""The command ``doctor``: bug reports, and the memory that an experiment needs."""

import importlib.metadata
import pathlib
import subprocess
import sys

import jax
import pytest

import jaxformer
from jaxformer.cli import main

PROJECT = pathlib.Path(__file__).parents[2]
SMALL = [
    f"--config={PROJECT / 'configs' / 'base.py'}:tiny",
    "--config.model.vocab_size=100",
    "--config.model.d_model=16",
    "--config.model.d_ff=32",
    "--config.model.num_layers=1",
    "--config.data.tokens_per_batch=2048",
]


def test_a_bug_report_survives_a_failing_jax(capsys, monkeypatch, tmp_path):
    (tmp_path / "program").write_bytes(bytes(200_000))
    monkeypatch.setenv("JAXFORMER_CACHE", str(tmp_path))

    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"jaxformer: {jaxformer.__version__}"
    for name in ("flax", "orbax-checkpoint"):
        assert f"{name}: {importlib.metadata.version(name)}" in lines
    assert any(line.startswith("device info: cpu-") for line in lines)
    assert f"cache: {tmp_path}, 0.2 MB" in lines

    version = importlib.metadata.version("matplotlib")
    purpose = "for jaxformer plot, and attention as an image"
    assert f"extra plots: matplotlib {version}, {purpose}" in lines

    def broken():
        raise RuntimeError("no TPU")

    monkeypatch.setattr(jax, "print_environment_info", broken)
    assert main(["doctor"]) == 0
    assert "failed with RuntimeError('no TPU')" in capsys.readouterr().out


def test_the_package_is_a_command_and_has_a_version():
    command = [sys.executable, "-m", "jaxformer", "--version"]
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    assert finished.stdout == f"jaxformer {jaxformer.__version__}\n"


@pytest.mark.ci
def test_a_step_is_measured_on_simulated_devices():
    command = [sys.executable, "-m", "jaxformer", "doctor", *SMALL, "--memory", "1GiB"]
    finished = subprocess.run([*command, "--devices", "3"], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr

    first, second = finished.stdout.splitlines()
    assert first == (
        "A step of 2,048 tokens per side in sentences of 128, on 3 cpu device(s). "
        "Each has 1.07 GB and needs:"
    )
    assert second.endswith(" fits: as configured")


def test_mistakes(capsys):
    for arguments, words in (
        (["--memory", "16GB"], "--memory needs --config FILE"),
        ([*SMALL, "--memory", "16"], "--memory: expected a size such as 16GB or 16GiB, got '16'"),
        ([*SMALL, "--devices", "0"], "--devices must be at least 1: got 0"),
    ):
        assert main(["doctor", *arguments]) == 2
        assert words in capsys.readouterr().err
