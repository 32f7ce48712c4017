"""A run that resumes on other devices and another mesh ends like one that stayed on one device."""

import json

import jax
import numpy as np
import pytest

from jaxformer import config as config_lib
from jaxformer.checkpoint import Checkpoints
from jaxformer.experiment import make_optimizer
from jaxformer.tasks.translation import make_init
from jaxformer.training.mesh import make_mesh
from jaxformer.training.step import abstract_state

from .training_process import start_training

pytestmark = pytest.mark.nightly

# Devices, mesh and last step of each part of the run.
PARTS = [
    (1, {}, 10),
    (8, {"mesh.data": 2, "mesh.fsdp": 2, "mesh.tensor": 2}, 20),
    (4, {"mesh.fsdp": 4}, 30),
    (2, {"mesh.tensor": 2}, 40),
]


def train(folder, devices, mesh, steps):
    settings = {"training.steps": steps, "training.eval_every": 10, "training.eval_sentences": 0}
    process = start_training(folder, devices=devices, **settings | mesh)
    _, errors = process.communicate(timeout=500)
    assert process.returncode == 0, errors
    assert f"on {devices} cpu device" in errors
    return errors


def states_of(folder, steps):
    """Returns the states of some steps, on one device."""
    config = config_lib.load(folder / "config.json")
    mesh = make_mesh(devices=jax.devices()[:1])
    template = abstract_state(make_init(config.model), make_optimizer(config), mesh)
    with Checkpoints(folder / "checkpoints") as checkpoints:
        return [jax.device_get(checkpoints.restore(template, step=step).state) for step in steps]


def reports_of(folder):
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_resumes_on_other_devices_and_meshes(tmp_path):
    for devices, mesh, steps in PARTS:
        errors = train(tmp_path / "moved", devices, mesh, steps)
        assert ("resumed from step" in errors) == (steps > 10)
    train(tmp_path / "stayed", 1, {}, 40)
    ours, theirs = (reports_of(tmp_path / name) for name in ("moved", "stayed"))
    assert [(r["kind"], r["step"]) for r in ours] == [(r["kind"], r["step"]) for r in theirs]
    for found, expected in zip(ours, theirs, strict=True):
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-4)
    (found,), (expected,) = (states_of(tmp_path / name, [40]) for name in ("moved", "stayed"))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4 * max(1e-3, np.abs(b).max()))
