"""Tiny runs of train.py in separate processes, and what a run without faults results in."""

import fcntl
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxformer.config import read_config
from jaxformer.experiment import make_optimizer
from jaxformer.kinds.model_parameters import make_init
from jaxformer.runs.checkpoints import Checkpoints
from jaxformer.runs.workdir import Workdir
from jaxformer.training.mesh import make_mesh
from jaxformer.training.train_state import abstract_state, to_saved

from ..profiles import by_profile
from ..runs import reports

PROJECT = pathlib.Path(__file__).parents[2]
SETTINGS = {
    "model.vocab_size": 300,
    "model.d_model": 16,
    "model.d_ff": 32,
    "model.max_length": 64,
    "model.num_heads": 2,
    "model.num_layers": 1,
    "data.batching": "packing",
    "data.tokens_per_batch": 512,
    "training.log_every": 10,
    "training.checkpoint_every": 10,
    "training.keep_checkpoints": 2,
}
# The run of `whole_run`. No interval divides another, except that checkpoints are validated.
WHOLE = {
    "training.steps": 48,
    "training.log_every": 7,
    "training.checkpoint_every": 4,
    "training.eval_every": 8,
    "training.eval_sentences": by_profile(0, nightly=3),
    "training.keep_checkpoints": 3,
}
TIMES = {"seconds_per_step", "waiting", "tokens_per_second"}


def command(folder, script="train.py", **settings):
    fields = SETTINGS | settings
    flags = [f"--config.{name}={value}" for name, value in fields.items()]
    return [
        sys.executable,
        script,
        "--config=configs/numerals.py",
        f"--workdir={folder}",
        *flags,
    ]


def environment(devices=1):
    return {
        **os.environ,
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "PYTHONWARNINGS": "default",
        "PYTHONPATH": str(PROJECT),
    }


def start_training(
    folder,
    *flags,
    devices=1,
    stderr=subprocess.PIPE,
    script="train.py",
    variables=None,
    **settings,
):
    """Starts the run on ``devices`` simulated devices; its ``stderr`` has the errors."""
    return subprocess.Popen(
        [*command(folder, script, **settings), *flags],
        cwd=PROJECT,
        env=environment(devices) | (variables or {}),
        stderr=stderr,
        text=True,
    )


def free_address():
    """Returns the address at which processes of a run can find each other."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        _, port = free.getsockname()
        return f"localhost:{port}"


def finish(*processes):
    """Waits for the ends of processes; returns their exit codes and what they wrote to stderr."""
    said = []
    for process in processes:
        _, errors = process.communicate(timeout=300)
        said.append(errors)

    codes = [process.returncode for process in processes]
    return codes, said


def wait_until(condition, *processes, every=0.001):
    """Waits while the processes live; returns whether the condition came true before one ended."""
    deadline = time.monotonic() + 300
    while not condition():
        if any(process.poll() is not None for process in processes):
            return False
        assert time.monotonic() < deadline
        time.sleep(every)
    return True


def newest_step(folder):
    """Returns the newest complete step of a run or of its copy, or 0."""
    paths = (folder / "checkpoints").glob("*/manifest.json")
    names = [path.parent.name for path in paths]
    steps = [int(name) for name in names if name.isdecimal()]
    return max(steps, default=0)


class Result(NamedTuple):
    """The state of a run, its reports without times, and its checkpoints."""

    state: Any
    metrics: list[dict[str, Any]]
    steps: list[int]
    best_step: int | None


def result(folder):
    """Returns the ``Result`` of a run or of its copy."""
    config = read_config(Workdir(folder))
    mesh = make_mesh(devices=jax.devices()[:1])
    template = abstract_state(make_init(config.model), make_optimizer(config), mesh)

    checkpoints = Checkpoints(folder / "checkpoints")
    return Result(
        state=jax.device_get(checkpoints.restore(to_saved(template)).state),
        metrics=[without_times(report) for report in reports(folder)],
        steps=checkpoints.steps(),
        best_step=checkpoints.best_step(),
    )


def without_times(report):
    return {name: value for name, value in report.items() if name not in TIMES}


def assert_same_result(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found.state, expected.state)
    assert found.metrics == expected.metrics
    assert found.steps == expected.steps
    assert found.best_step == expected.best_step


def assert_close_result(found, expected):
    """Compares runs on different devices, which add numbers in another order."""
    leaves = zip(
        jax.tree.leaves(found.state),
        jax.tree.leaves(expected.state),
        strict=True,
    )
    for ours, theirs in leaves:
        largest = np.abs(theirs).max()
        size = max(1e-3, largest)
        np.testing.assert_allclose(ours, theirs, atol=1e-4 * size)

    for ours, theirs in zip(found.metrics, expected.metrics, strict=True):
        assert ours["kind"] == theirs["kind"]
        assert ours["step"] == theirs["step"]
        np.testing.assert_allclose(ours["loss"], theirs["loss"], rtol=1e-4)

    assert found.steps == expected.steps


def whole_run(tmp_path_factory):
    """Returns the folder of an uninterrupted run, which the first test of any process makes."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # of all workers

    folder = base / "whole_run"
    with (base / "whole_run.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if newest_step(folder) < WHOLE["training.steps"]:
            codes, said = finish(start_training(folder, **WHOLE))
            assert codes == [0], said
    return folder


def cut_back(whole, folder, step):
    """Copies a run as it was when a step had been saved."""
    shutil.copytree(whole, folder)
    for path in (folder / "checkpoints").iterdir():
        if int(path.name) > step:
            shutil.rmtree(path)

    (folder / "committed.json").write_text(json.dumps({"step": step}))
