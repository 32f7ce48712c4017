"""Checkpoints survive a killed process, a full disk, and a reader beside the run."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.checkpoint import Checkpoints

pytestmark = pytest.mark.ci

# States of 20 MB, different in each step, and random so that they do not compress.
PROGRAM = """
import pathlib, sys
import jax
from jaxformer.checkpoint import Checkpoints

def state(step):
    key = jax.random.key(step)
    return {"params": {str(i): jax.random.normal(key, (500, 1000)) + i for i in range(10)}}

directory = pathlib.Path(sys.argv[1])
"""

KEEPS_SAVING = """
with Checkpoints(directory, keep=2) as checkpoints:
    for step in range(1, 1000):
        checkpoints.save(step, state(step), metadata={"step": step})
        print("saving", step, flush=True)
"""

SAVES_SMALL_STATES = """
import numpy as np

with Checkpoints(directory, keep=1) as checkpoints:
    for step in range(1, 10_000):
        params = {str(i): np.full(1000, step + i, np.float32) for i in range(10)}
        checkpoints.save(step, {"params": params}, metadata={})
        print("saving", step, flush=True)
"""

STOPS_BEFORE_THE_COMMIT = """
import time
from jaxformer.checkpoint.manifest import Manifest

write = Manifest.write

def write_and_stop(manifest, folder):
    write(manifest, folder)
    if manifest.step == 2:
        print("written", flush=True)
        time.sleep(60)

Manifest.write = write_and_stop
with Checkpoints(directory, keep=2) as checkpoints:
    for step in (1, 2):
        checkpoints.save(step, state(step), metadata={"step": step})
"""

FILLS_THE_DISK = """
import resource, time

with Checkpoints(directory, keep=1) as checkpoints:
    checkpoints.save(1, state(1), metadata={})
    checkpoints.wait()
    # Writes beyond this file size fail as on a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
    checkpoints.save(2, state(2), metadata={})
    while True:
        time.sleep(0.01)
        checkpoints.check()
"""


KEEPS_SCORING = """
with Checkpoints(directory, keep=2) as checkpoints:
    checkpoints.save(1, state(1), metadata={})
    for score in range(10**9):
        checkpoints.attach_score(1, score)
        if score == 10:
            print("scored", flush=True)
"""


# The folder of step 1 does not let its files be removed until step 3 is saved.
CANNOT_REMOVE = """
with Checkpoints(directory, keep=1) as checkpoints:
    for step in (1, 2, 3):
        checkpoints.save(step, state(step), metadata={})
        checkpoints.wait()
        if step == 1:
            (directory / "1").chmod(0o555)
            directory.chmod(0o777)
        if step == 2:
            left = next(directory.glob("1*"))
            print(left.name, sorted(path.name for path in left.iterdir()) != [], flush=True)
            left.chmod(0o755)
"""


def start(program: str, directory: pathlib.Path, *wrapper: str) -> subprocess.Popen:
    return subprocess.Popen(
        [*wrapper, sys.executable, "-c", PROGRAM + program, str(directory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""},
    )


def wait_for(process: subprocess.Popen, line: str) -> None:
    assert process.stdout is not None
    for found in process.stdout:
        if found.strip() == line:
            return
    raise AssertionError(f"{line!r} never came: {process.communicate()[1]}")


def kill(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def expected_params(step: int) -> dict[str, jax.Array]:
    """Returns the parameters that the program saves at a step."""
    key = jax.random.key(step)
    return {str(i): jax.random.normal(key, (500, 1000)) + i for i in range(10)}


def assert_good(directory: pathlib.Path, step: int) -> None:
    """Checks that every step can be restored with its values, and that another can be saved."""
    template = {"params": jax.eval_shape(lambda: expected_params(0))}
    with Checkpoints(directory, keep=2) as checkpoints:
        assert checkpoints.restore(template).step == step
        names = sorted(path.name for path in directory.iterdir())
        assert names == [str(step) for step in checkpoints.steps()]
        for each in checkpoints.steps():
            restored = checkpoints.restore(template, step=each)
            for name, params in expected_params(each).items():
                np.testing.assert_array_equal(restored.state["params"][name], params)
        checkpoints.save(step + 1, {"params": {"w": jnp.zeros(2)}}, metadata={})
        checkpoints.wait()
        assert checkpoints.steps()[-1] == step + 1


def test_killed_just_before_the_commit(tmp_path: pathlib.Path) -> None:
    process = start(STOPS_BEFORE_THE_COMMIT, tmp_path)
    wait_for(process, "written")
    kill(process)
    assert Checkpoints(tmp_path).steps() == [1]
    assert len(list(tmp_path.iterdir())) == 2
    assert_good(tmp_path, step=1)


@pytest.mark.parametrize("delay", [0.0, 0.1])
def test_killed_at_any_time(tmp_path: pathlib.Path, delay: float) -> None:
    process = start(KEEPS_SAVING, tmp_path)
    wait_for(process, "saving 3")
    time.sleep(delay)
    kill(process)
    newest = Checkpoints(tmp_path).steps()[-1]
    assert newest >= 2
    assert_good(tmp_path, step=newest)


def test_killed_while_it_attaches_a_score(tmp_path: pathlib.Path) -> None:
    process = start(KEEPS_SCORING, tmp_path)
    wait_for(process, "scored")
    kill(process)
    assert Checkpoints(tmp_path).is_scored(1)
    assert_good(tmp_path, step=1)


def test_full_disk(tmp_path: pathlib.Path) -> None:
    # Errors go through a pipe, to which the limit on file sizes does not apply.
    process = start(FILLS_THE_DISK, tmp_path)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "step 2 could not be saved; the steps [1] are intact. Free or repair the disk" in errors
    assert "File too large" in errors
    assert [path.name for path in tmp_path.iterdir()] == ["1"]
    assert_good(tmp_path, step=1)


def test_a_reader_beside_a_run_always_finds_a_checkpoint(tmp_path: pathlib.Path) -> None:
    """With keep=1 and no pause between saves, most steps are removed while they are read."""
    process = start(SAVES_SMALL_STATES, tmp_path)
    wait_for(process, "saving 3")
    template = {str(i): jax.ShapeDtypeStruct((1000,), jnp.float32) for i in range(10)}
    steps, began = [], time.monotonic()
    while time.monotonic() - began < 10:
        restored = Checkpoints(tmp_path).restore_params(template)
        for name, values in restored.params.items():
            np.testing.assert_array_equal(values, restored.step + int(name))
        steps.append(restored.step)
    assert process.poll() is None
    kill(process)
    assert steps == sorted(steps)
    assert len(set(steps)) > 5


@pytest.mark.skipif(
    os.geteuid() == 0 and shutil.which("setpriv") is None,
    reason="root may write everywhere, unless setpriv takes this right away",
)
def test_an_old_step_that_cannot_be_removed_does_not_end_the_run(tmp_path: pathlib.Path) -> None:
    wrapper = ["setpriv", "--bounding-set", "-all"] if os.geteuid() == 0 else []
    process = start(CANNOT_REMOVE, tmp_path, *wrapper)
    said, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    assert said.startswith("1.orbax-checkpoint-tmp True")
    assert "could not remove old checkpoints, and will try again after the next save" in errors
    assert errors.count("Permission denied") == 1
    assert_good(tmp_path, step=3)
