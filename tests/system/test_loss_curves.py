"""The losses of 50 steps of two configs are those that are stored, and notice a small change."""

import os
import pathlib
import subprocess
import sys

import pytest

from ..loss_curves import CONFIGS, TOLERANCE, describe_difference

PROJECT = pathlib.Path(__file__).parents[2]
STORED = {"mine": [4.0, 3.0], "other": [4.0 + 1e-5, 3.0]}


@pytest.mark.parametrize(
    ("losses", "machine", "expected"),
    [
        ([4.0, 3.0], "mine", ""),
        ([4.0, 3.0 + 1e-15], "mine", "the loss of step 2 is 3.000000000000001, but 3.0 is stored"),
        ([4.0, float("nan")], "mine", "the loss of step 2 is nan"),
        ([4.0 + 1e-5, 3.0 + 1e-5], "new", ""),
        ([4.0, 3.0 + 4e-5], "new", "the loss of step 2 is 3.00004, but 3.0 is stored for mine"),
    ],
)
def test_losses_are_compared_bit_for_bit_on_a_stored_machine(losses, machine, expected):
    assert TOLERANCE == 1e-5
    assert describe_difference(losses, STORED, machine).startswith(expected)


def compare(name, *options):
    """Runs the script as a user does: without the options of the tests' own process."""
    environment = dict(os.environ)
    for variable in ("XLA_FLAGS", "JAX_DISABLE_MOST_OPTIMIZATIONS"):
        environment.pop(variable, None)
    command = [sys.executable, "tests/loss_curves.py", "--only", name, *options]
    return subprocess.run(
        command,
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.nightly
@pytest.mark.parametrize("name", CONFIGS)
def test_losses_are_those_that_are_stored(name):
    found = compare(name)
    assert found.returncode == 0, found.stdout + found.stderr
    assert f"{name}: the same losses" in found.stdout


@pytest.mark.nightly
def test_another_epsilon_of_layer_norms_is_noticed():
    found = compare("numerals", "--set", "model.norm_epsilon=1e-4")
    assert found.returncode == 1, found.stderr
    assert "numerals: the loss of step" in found.stdout
