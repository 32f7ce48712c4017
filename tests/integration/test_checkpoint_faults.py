"""Checkpoints survive a killed process and an immovable step; a reader beside a run finds one."""

import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from jaxformer.checkpoint import Checkpoints

pytestmark = pytest.mark.nightly

PROGRAM = """
import pathlib, sys, time
import numpy as np
from jaxformer.checkpoint import Checkpoints
from jaxformer.checkpoint.manifest import Manifest

directory, keep, last = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])

def before_commit(step): pass
def after_commit(step): pass
{change}
write = Manifest.write

def write_and_call(manifest, folder):
    write(manifest, folder)
    before_commit(manifest.step)

Manifest.write = write_and_call
with Checkpoints(directory, keep=keep) as checkpoints:
    for step in range(1, last + 1):
        params = {{str(i): np.full(1000, step + i, np.float32) for i in range(10)}}
        checkpoints.save(step, {{"params": params}}, metadata={{}})
        print("saving", step, flush=True)
        after_commit(step)
"""
STOPS_BEFORE_THE_COMMIT = """
def before_commit(step):
    if step == 2:
        print("reached", flush=True)
        time.sleep(60)
"""
KEEPS_SCORING = """
def after_commit(step):
    for score in range(10**9):
        checkpoints.attach_score(1, score)
        if score == 10:
            print("reached", flush=True)
"""
# The folder of step 1 does not let its files be removed until step 3 is saved.
CANNOT_REMOVE = """
def after_commit(step):
    checkpoints.wait()
    if step == 1:
        (directory / "1").chmod(0o555)
        directory.chmod(0o777)
    if step == 2:
        left = next(directory.glob("1*"))
        print(left.name, sorted(path.name for path in left.iterdir()) != [], flush=True)
        left.chmod(0o755)
"""


def start(directory, *wrapper, keep=2, last=10_000, change=""):
    program = PROGRAM.format(change=change)
    return subprocess.Popen(
        [*wrapper, sys.executable, "-c", program, str(directory), str(keep), str(last)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""},
    )


def kill_after(process, line):
    assert any(found.strip() == line for found in process.stdout), process.communicate()[1]
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def restore(directory):
    """Returns the newest step, after a comparison of its values with the saved ones."""
    template = {str(i): np.zeros(1000, np.float32) for i in range(10)}
    restored = Checkpoints(directory).restore_params(template)
    for name, values in restored.params.items():
        np.testing.assert_array_equal(values, restored.step + int(name))
    return restored.step


@pytest.mark.parametrize("change", [STOPS_BEFORE_THE_COMMIT, KEEPS_SCORING])
def test_killed_before_a_commit_and_during_a_score(tmp_path, change):
    kill_after(start(tmp_path, change=change), "reached")
    assert Checkpoints(tmp_path).steps() == [1]
    assert Checkpoints(tmp_path).is_scored(1) == (change == KEEPS_SCORING)
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        assert restore(tmp_path) == 1
        assert [path.name for path in tmp_path.iterdir()] == ["1"]
        checkpoints.save(2, {"params": {"w": np.zeros(2)}}, metadata={})
    assert Checkpoints(tmp_path).newest_good_step() == 2


def test_a_reader_beside_a_run_always_finds_a_checkpoint(tmp_path):
    """With keep=1 and no pause between saves, most steps are removed while they are read."""
    process = start(tmp_path, keep=1)
    assert any(found.strip() == "saving 3" for found in process.stdout)
    steps, began = [], time.monotonic()
    while time.monotonic() - began < 10:
        steps.append(restore(tmp_path))
    assert process.poll() is None
    process.kill()
    process.communicate()
    assert steps == sorted(steps)
    assert len(set(steps)) > 5


@pytest.mark.skipif(
    os.geteuid() == 0 and shutil.which("setpriv") is None,
    reason="root may write everywhere, unless setpriv takes this right away",
)
def test_an_old_step_that_cannot_be_removed_does_not_end_the_run(tmp_path):
    wrapper = ["setpriv", "--bounding-set", "-all"] if os.geteuid() == 0 else []
    process = start(tmp_path, *wrapper, keep=1, last=3, change=CANNOT_REMOVE)
    said, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    assert "1.orbax-checkpoint-tmp True" in said
    assert "could not remove old checkpoints, and will try again after the next save" in errors
    assert errors.count("Permission denied") == 1
    assert restore(tmp_path) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["3"]
