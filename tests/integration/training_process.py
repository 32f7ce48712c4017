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

import jax
import numpy as np

from jaxformer.config import read_config
from jaxformer.experiment import make_optimizer
from jaxformer.kinds.model_parameters import make_init
from jaxformer.runs.checkpoints import Checkpoints
from jaxformer.runs.workdir import Workdir
from jaxformer.training.mesh import make_mesh
from jaxformer.training.train_state import abstract_state

from ..profiles import by_profile
from ..runs import reports

PROJECT = pathlib.Path(__file__).parents[2]
SETTINGS = {
    **{"model.vocab_size": 300, "model.d_model": 16, "model.d_ff": 32, "model.max_length": 64},
    **{"model.num_heads": 2, "model.num_layers": 1},
    **{"data.batching": "packing", "data.tokens_per_batch": 512},
    **{"training.log_every": 10, "training.checkpoint_every": 10, "training.keep_checkpoints": 2},
}
# The run of `whole_run`. No interval divides another, except that checkpoints are validated.
WHOLE = {
    **{"training.steps": 48, "training.log_every": 7, "training.checkpoint_every": 4},
    **{"training.eval_every": 8, "training.eval_sentences": by_profile(0, nightly=3)},
    "training.keep_checkpoints": 3,
}
TIMES = {"seconds_per_step", "waiting", "tokens_per_second"}


def command(folder, script="train.py", **settings):
    return [
        *(sys.executable, script, "--config=configs/numerals.py", f"--workdir={folder}"),
        *(f"--config.{name}={value}" for name, value in (SETTINGS | settings).items()),
    ]


def environment(devices=1):
    flags = f"--xla_force_host_platform_device_count={devices}"
    path = str(PROJECT)
    return {**os.environ, "XLA_FLAGS": flags, "PYTHONWARNINGS": "default", "PYTHONPATH": path}


def start_training(
    folder, *flags, devices=1, stderr=subprocess.PIPE, script="train.py", variables=None, **settings
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
        return f"localhost:{free.getsockname()[1]}"


def finish(*processes):
    said = [process.communicate(timeout=300)[1] for process in processes]
    return [process.returncode for process in processes], said


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
    return max((int(path.parent.name) for path in paths if path.parent.name.isdecimal()), default=0)


def result(folder):
    """Returns state, metrics without times, steps and best step."""
    config = read_config(Workdir(folder))
    mesh = make_mesh(devices=jax.devices()[:1])
    template = abstract_state(make_init(config.model), make_optimizer(config), mesh)
    checkpoints = Checkpoints(folder / "checkpoints")
    metrics = [{n: v for n, v in report.items() if n not in TIMES} for report in reports(folder)]
    state = jax.device_get(checkpoints.restore(template).state)
    return state, metrics, checkpoints.steps(), checkpoints.best_step()


def assert_same_result(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found[0], expected[0])
    assert found[1:] == expected[1:]


def assert_close_result(found, expected):
    """Compares runs on different devices, which add numbers in another order."""
    for a, b in zip(jax.tree.leaves(found[0]), jax.tree.leaves(expected[0]), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4 * max(1e-3, np.abs(b).max()))
    for ours, theirs in zip(found[1], expected[1], strict=True):
        assert (ours["kind"], ours["step"]) == (theirs["kind"], theirs["step"])
        np.testing.assert_allclose(ours["loss"], theirs["loss"], rtol=1e-4)
    assert found[2] == expected[2]


def whole_run(tmp_path_factory):
    """Returns the folder of an uninterrupted run, which the first test of any process makes."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
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
