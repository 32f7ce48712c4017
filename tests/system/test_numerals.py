"""End-to-end training from the command line, tested on unseen number words."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

PROJECT = pathlib.Path(__file__).parents[2]


@pytest.mark.nightly
def test_the_numerals_demo_learns(tmp_path):
    """Less than half of the demo's steps suffice to translate 90 % of unseen numbers."""
    environment = {**os.environ, "XLA_FLAGS": "", "JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}

    def run(*command):
        result = subprocess.run(
            [sys.executable, *command], cwd=PROJECT, env=environment, capture_output=True, text=True
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    run(
        "train.py",
        "--config=configs/numerals.py",
        f"--workdir={tmp_path}/run",
        "--config.training.steps=600",
    )
    run("-m", "jaxformer.data.numerals", "held_out", f"--directory={tmp_path}")
    report = run(
        *("-m", "jaxformer.cli", "evaluate", "--json", "--workdir", f"{tmp_path}/run"),
        *("--source", f"{tmp_path}/held_out.en", "--reference", f"{tmp_path}/held_out.de"),
    )
    report = json.loads(report)
    assert report["lines"] == 500
    assert report["exact_match"]["score"] >= 90
