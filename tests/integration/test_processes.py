"""Two processes with four devices each train the same model as one process does."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from jaxformer import config as config_lib
from jaxformer.checkpoint import Checkpoints
from jaxformer.errors import RESUMABLE
from jaxformer.experiment import make_optimizer
from jaxformer.tasks.translation import make_init
from jaxformer.training.mesh import make_mesh
from jaxformer.training.step import abstract_state

from .test_user_task import run
from .training_process import start_training

SETTINGS = {
    "training.steps": 20,
    "training.eval_every": 20,
    "training.eval_sentences": 7,
}

# As on a pod, devices are not in the order of processes: process 0 has the devices 0 and 3.
PLACE_ROWS = """
import sys
import jax, numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from jaxformer.data.batch import Batch
from jaxformer.training.mesh import local_batch_shards, to_devices

jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
order = np.array(jax.devices())[[0, 2, 3, 1]]
mesh = Mesh(order.reshape(2, 2, 1), ("data", "fsdp", "tensor"))
assert local_batch_shards(mesh) == [[0, 3], [1, 2]][jax.process_index()]
shards = np.arange(24, dtype=np.int32).reshape(4, 2, 3)
batch = to_devices(mesh, Batch(*[shards[local_batch_shards(mesh)].reshape(4, 3)] * 7))
for whole in multihost_utils.process_allgather(batch, tiled=True):
    np.testing.assert_array_equal(whole, shards.reshape(8, 3))
"""

# A task of the user, where each process has the rows of its devices.
USER_TASK = """
import sys

import jax
import numpy as np
from jax.experimental import multihost_utils

jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
sys.path.insert(0, sys.argv[3])
import jaxformer
import test_user_task

notes = test_user_task.Notes()
state = test_user_task.run(sys.argv[4], mesh=jaxformer.make_mesh(), writers=[notes])
params = multihost_utils.process_allgather(state.params, tiled=True)
assert len(notes.reports) == (9 if jax.process_index() == 0 else 0)
np.savez(f"{sys.argv[4]}/params-{jax.process_index()}.npz", **params)
"""

pytestmark = pytest.mark.ci


def start(folder, devices, *flags, **settings):
    return start_training(folder, *flags, devices=devices, **(SETTINGS | settings))


def pair_flags():
    """Returns the flags by which each of two processes finds the other."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        coordinator = f"localhost:{free.getsockname()[1]}"
    return [
        (f"--coordinator={coordinator}", "--num_processes=2", f"--process_id={i}") for i in range(2)
    ]


def finish(*processes):
    """Returns the exit codes and the errors of the processes."""
    said = [process.communicate(timeout=300)[1] for process in processes]
    return [process.returncode for process in processes], said


def result(folder):
    """Returns the final parameters and the reports."""
    config = config_lib.load(folder / "config.json")
    mesh = make_mesh(devices=jax.devices()[:1])
    template = abstract_state(make_init(config.model), make_optimizer(config), mesh)
    with Checkpoints(folder / "checkpoints") as checkpoints:
        params = jax.device_get(checkpoints.restore(template, step=20).state.params)
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return params, [json.loads(line) for line in lines]


@pytest.mark.nightly
def test_two_processes_equal_one(tmp_path):
    codes, said = finish(start(tmp_path / "one", 8))
    assert codes == [0], said
    pair = [start(tmp_path / "two", 4, *flags, **{"mesh.fsdp": 2}) for flags in pair_flags()]
    codes, said = finish(*pair)
    assert codes == [0, 0], said
    assert "on 8 cpu devices" in said[0]
    assert "step 20/20" not in said[1]  # only process 0 reports
    (params, reports), (others, others_reports) = result(tmp_path / "one"), result(tmp_path / "two")
    for ours, theirs in zip(jax.tree.leaves(params), jax.tree.leaves(others), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4 * np.abs(theirs).max())
    assert [(r["kind"], r["step"]) for r in others_reports] == [
        ("train", 10), ("train", 20), ("valid", 20)
    ]  # fmt: skip
    for ours, theirs in zip(reports, others_reports, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
    assert reports[-1]["exact_match"] == others_reports[-1]["exact_match"]


def test_rows_reach_the_devices_whatever_their_order():
    pair = [
        subprocess.Popen(
            [sys.executable, "-c", PLACE_ROWS, flags[0].removeprefix("--coordinator="), str(i)],
            env={**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for i, flags in enumerate(pair_flags())
    ]
    codes, said = finish(*pair)
    assert codes == [0, 0], said


def test_a_users_task_on_two_processes_equals_one(tmp_path):
    here, folder = str(pathlib.Path(__file__).parent), str(tmp_path / "two")
    pair = [
        subprocess.Popen(
            [
                *(sys.executable, "-c", USER_TASK),
                *(flags[0].removeprefix("--coordinator="), str(i), here, folder),
            ],
            cwd=pathlib.Path(here).parents[1],
            env={**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for i, flags in enumerate(pair_flags())
    ]
    codes, said = finish(*pair)
    assert codes == [0, 0], said
    expected = jax.device_get(run(tmp_path / "one", mesh=make_mesh()).params)
    for process in (0, 1):
        with np.load(tmp_path / "two" / f"params-{process}.npz") as found:
            for name, values in expected.items():
                np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-5)


def test_processes_started_differently_are_refused(tmp_path):
    flags = pair_flags()
    pair = [
        start(tmp_path / "run", 1, *flags[0]),
        start(tmp_path / "run", 1, *flags[1], **{"training.label_smoothing": 0.2}),
    ]
    codes, said = finish(*pair)
    assert codes == [2, 2], said
    for errors in said:
        assert "process 1 was started with another config than process 0" in errors
    assert not (tmp_path / "run").exists()


def test_one_process_asked_to_stop_stops_both_after_the_same_step(tmp_path):
    settings = {"training.steps": 5000, "training.eval_every": 5000}
    folder = tmp_path / "run"
    pair = [start(folder, 1, *flags, **settings) for flags in pair_flags()]
    wait_for_step(folder, 10, pair)
    pair[1].send_signal(signal.SIGTERM)
    codes, said = finish(*pair)
    assert codes == [RESUMABLE, RESUMABLE], said
    saved = max(int(path.name) for path in (folder / "checkpoints").iterdir())
    for errors in said:
        assert f"SIGTERM: step {saved} is saved" in errors


@pytest.mark.nightly
def test_when_one_process_dies_the_other_ends(tmp_path):
    """Ctrl-C in one process stops both, too."""
    folder, settings = tmp_path / "run", {"training.steps": 5000, "training.eval_every": 5000}
    pair = [start(folder, 1, *flags, **settings) for flags in pair_flags()]
    wait_for_step(folder, 10, pair)
    pair[0].send_signal(signal.SIGINT)
    codes, said = finish(*pair)
    assert codes == [RESUMABLE, RESUMABLE], said
    saved = newest_step(folder)
    pair = [start(folder, 1, *flags, **settings) for flags in pair_flags()]
    wait_for_step(folder, saved + 10, pair)
    pair[1].kill()
    began = time.monotonic()
    codes, said = finish(*pair)
    assert time.monotonic() - began < 30
    assert codes == [RESUMABLE, -signal.SIGKILL], said
    assert "process 1 is gone (killed, crashed, or unreachable) after step" in said[0]
    assert f"resumed from step {saved}" in said[0]


def newest_step(folder):
    names = (path.name for path in (folder / "checkpoints").glob("*"))
    return max((int(name) for name in names if name.isdecimal()), default=0)


def wait_for_step(folder, step, processes):
    deadline = time.monotonic() + 400
    while newest_step(folder) < step:
        assert time.monotonic() < deadline
        assert all(process.poll() is None for process in processes)
        time.sleep(0.1)
