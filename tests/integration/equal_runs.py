"""Runs that must equal a whole one: interrupted and resumed, and on another mesh."""

import pathlib

import jax
import numpy as np
import pytest

from jaxformer import Config, every, load_model, train

from ..runs import Killed, changed, reports

# Instead of data=8, of the eight simulated devices.
OTHER_MESH = {"data": 2, "fsdp": 2, "tensor": 2}


def check_resumed(config: Config, whole: pathlib.Path, folder: pathlib.Path, *, cut: int) -> None:
    """Checks that a run that is killed after a step and resumed has the same parameters at its end.

    Args:
      config: The config of both runs.
      whole: The workdir of the run that nothing interrupted.
      folder: A folder for the other run.
      cut: The step.
    """

    def kill(step, state, sums):
        raise Killed

    with pytest.raises(Killed):
        train(config, folder / "cut", hooks=[every(cut, kill)])
    resumed = train(config, folder / "cut")

    _, expected = load_model(whole)
    jax.tree.map(np.testing.assert_array_equal, resumed.params, expected)


def check_other_mesh(
    config: Config, whole: pathlib.Path, folder: pathlib.Path
) -> tuple[dict, dict]:
    """Checks that a run on another mesh reports the same loss at first; returns both reports.

    Args:
      config: A config as of the whole run, with maybe fewer steps.
      whole: The workdir of a run on the usual mesh.
      folder: A folder for the other run.
    """
    train(changed(config, mesh=OTHER_MESH), folder / "mesh")
    expected, *_ = reports(whole)
    found, *_ = reports(folder / "mesh")

    assert found["step"] == expected["step"]
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-3)
    return found, expected
