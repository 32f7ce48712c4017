"""The second copy of a run, ``training.mirror``."""

import errno
import fcntl
import json
import logging
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from jaxformer.checkpoint import Checkpoints
from jaxformer.errors import UserError
from jaxformer.experiment import train
from jaxformer.inference.weights import load_model
from jaxformer.workdir import Workdir

from .training_process import start_training


@pytest.fixture(autouse=True)
def _warnings(caplog):
    caplog.set_level(logging.WARNING, "jaxformer")


@pytest.fixture
def config(tiny_config, tmp_path):
    """Returns a function to the config of a run with a mirror."""
    (tmp_path / "drive").mkdir()

    def configured(**training):
        mirror = str(tmp_path / "drive" / "copy")
        return tiny_config(**{"mirror": mirror, "eval_sentences": 0, **training})

    return configured


@pytest.fixture
def run(tmp_path):
    return Workdir(tmp_path / "run")


@pytest.fixture
def copy(tmp_path):
    return Workdir(tmp_path / "drive" / "copy")


def assert_equal_states(actual, expected):
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(actual), jax.device_get(expected))


def files_of(folder):
    """Returns the content of all files by name."""
    paths = (path for path in folder.path.rglob("*") if path.is_file())
    return {str(path.relative_to(folder.path)): path.read_bytes() for path in paths}


def is_ours(name):
    return name != "lock" and not name.startswith("tensorboard")


@pytest.fixture(scope="module")
def uninterrupted(tiny_config, tiny_workdir, tmp_path_factory):
    folder = shutil.copytree(tiny_workdir, tmp_path_factory.mktemp("uninterrupted") / "run")
    return train(tiny_config(), folder), folder


def test_a_run_that_lost_everything_resumes_from_it(config, run, copy, caplog, uninterrupted):
    train(config(steps=4, eval_every=2), run.path)
    names = {name for name in files_of(run) if name != "lock" and "tensorboard" not in name}
    assert files_of(copy).keys() == names
    # The copy is a workdir, too.
    for weights in ("latest", "best"):
        found, expected = (load_model(f.path, weights=weights)[1] for f in (copy, run))
        assert_equal_states(found, expected)
    shutil.rmtree(run.path)
    state = train(config(eval_every=2), run.path)
    assert f"brought back the checkpoints of steps 2, 4 from {copy.path}" in caplog.text
    assert_equal_states(state, uninterrupted[0])
    reports = [
        [
            (r["kind"], r["step"], r["loss"])
            for r in map(json.loads, f.metrics.read_text().splitlines())
        ]
        for f in (run, Workdir(uninterrupted[1]))
    ]
    assert [report for report in reports[0] if report in reports[1]] == reports[1]
    assert (
        Checkpoints(run.checkpoints).steps() == Checkpoints(copy.checkpoints).steps() == [2, 4, 6]
    )


@pytest.mark.ci
def test_a_run_that_lost_its_checkpoints_resumes_from_it(config, run, copy, caplog, uninterrupted):
    train(config(steps=4), run.path)
    shutil.rmtree(run.checkpoints)
    assert_equal_states(train(config(), run.path), uninterrupted[0])
    assert f"brought back the checkpoints of steps 2, 4 from {copy.path}" in caplog.text


def test_a_mirror_of_other_data_changes_nothing(config, run, copy, tmp_path):
    """Even if it has newer steps and a longer history."""
    train(config(steps=4), tmp_path / "other")
    shutil.copytree(tmp_path / "other", run.path)
    (run.path / "checkpoints" / "4").rename(tmp_path / "4")
    identity = json.loads(run.identity.read_text())
    changed = {name: value[::-1] for name, value in identity.items()}
    run.identity.write_text(json.dumps(changed))
    run.metrics.write_text("")
    before, theirs = files_of(run), files_of(copy)
    with pytest.raises(UserError, match=f"{copy.path}: the run began with other data"):
        train(config(steps=6), run.path)
    assert files_of(run) == before
    assert files_of(copy) == theirs


@pytest.mark.parametrize("operation", ["lock", "rename", "fsync"])
def test_a_workdir_on_a_file_system_for_copies_only_is_refused(
    operation, tiny_config, run, monkeypatch
):
    def refuse(*_):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    module, name = {"lock": (fcntl, "flock")}.get(operation, (os, operation))
    monkeypatch.setattr(module, name, refuse)
    expected = f"cannot {operation}; train in a --workdir on a local disk, and let training.mirror="
    with pytest.raises(UserError, match=expected):
        train(tiny_config(), run.path)
    assert {path.name for path in run.path.iterdir()} <= {"lock"}


def test_unsuitable_folders_are_refused(config, run, copy, tmp_path, tiny_workdir):
    def refused(expected, mirror=copy.path, **changes):
        with pytest.raises(UserError, match=expected):
            train(config(mirror=str(mirror), **changes), run.path)
        assert not run.config.exists()

    refused("two separate folders", run.path)
    refused("two separate folders", run.path / "copy")
    refused("two separate folders", tmp_path)
    refused(
        "in the existing folder .*nowhere; mount its drive first", tmp_path / "nowhere" / "copy"
    )
    with pytest.raises(UserError, match="mount the bucket"):
        config(mirror="gs://bucket/run")
    copy.checkpoints.mkdir(parents=True)
    refused("expected an empty folder or a copy of this run, found checkpoints")
    shutil.rmtree(copy.path)
    shutil.copytree(tiny_workdir, copy.path)
    refused("copy: holds a run with training.seed=0, but 5 was given", seed=5)
    # The workdir that another command has begun stays as it is, too.
    run.begin("jaxformer quantize", {})
    refused("jaxformer quantize has begun to write a workdir here; run it again")
    assert not run.checkpoints.exists()


@pytest.mark.ci
@pytest.mark.parametrize(
    "cut_off", ["identity.json", pytest.param("config.json", marks=pytest.mark.nightly)]
)
def test_a_first_copy_that_was_cut_off_is_made_anew(cut_off, config, run, copy, tmp_path):
    """The machine disappeared before a step was copied, in the middle of a small file."""
    train(config(steps=2, mirror=None), run.path)
    copy.path.mkdir(parents=True)
    shutil.copy(run.config, copy.config)
    (copy.path / cut_off).write_bytes(b"")
    train(config(), run.path)
    assert Checkpoints(copy.checkpoints).steps() == Checkpoints(run.checkpoints).steps()
    assert copy.identity.read_bytes() == run.identity.read_bytes()


@pytest.mark.nightly
def test_kills_during_copies_leave_a_copy_that_resumes(tmp_path):
    """The run is killed at random times, and its disk is lost each time."""
    folder, copy = tmp_path / "run", tmp_path / "copy"
    settings = {
        "training.mirror": copy,
        "training.checkpoint_every": 2,
        "training.eval_every": 10_000,
        "training.eval_sentences": 0,
        "training.steps": 5000,
    }
    rng, steps = np.random.default_rng(0), [0]
    for _ in range(6):
        process = start_training(folder, **settings)
        deadline = time.monotonic() + 120
        while newest(copy) < steps[-1] + 2:
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(rng.uniform(0, 0.5))
        process.kill()
        process.communicate()
        steps.append(newest(copy))
        shutil.rmtree(folder)
    process = start_training(folder, **settings)
    while newest(copy) < steps[-1] + 2:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=100)
    assert "brought back the checkpoints of steps " in errors
    assert process.returncode == 75
    saved = newest(folder)
    assert f"step {saved} is saved" in errors
    assert newest(copy) == saved  # the last copy was completed
    params = load_model(copy, weights=saved)[1]
    assert_equal_states(params, load_model(folder, weights=saved)[1])
    del settings["training.mirror"]
    whole = start_training(tmp_path / "whole", **settings | {"training.steps": saved})
    _, errors = whole.communicate(timeout=300)
    assert whole.returncode == 0, errors
    assert_equal_states(params, load_model(tmp_path / "whole", weights=saved)[1])


def newest(folder):
    """Returns the newest complete step."""
    paths = (folder / "checkpoints").glob("*/manifest.json")
    return max((int(path.parent.name) for path in paths if path.parent.name.isdecimal()), default=0)


FILLS_THE_DRIVE = """
mount -t tmpfs -o size=600k none "$1"/drive
exec "$2" - "$1" <<EOF
import pathlib, sys, time
import numpy as np
from jaxformer.checkpoint import Checkpoints, Mirror
from jaxformer.workdir import Workdir

root = pathlib.Path(sys.argv[1])
run, copy = Workdir(root / "run"), Workdir(root / "drive" / "copy")
(root / "drive" / "other").write_bytes(bytes(450_000))
run.path.mkdir()
rng = np.random.default_rng(0)
with Mirror(run, copy) as mirror, Checkpoints(run.checkpoints, keep=2) as checkpoints:
    for step in range(1, 5):
        checkpoints.save(step, {"params": {"w": rng.random(12_000)}}, metadata={})
        checkpoints.wait()
        mirror.update()
        time.sleep(1)
        if step == 3:
            (root / "drive" / "other").unlink()
print(Checkpoints(copy.checkpoints).steps(), Checkpoints(copy.checkpoints).newest_good_step())
EOF
"""


@pytest.mark.ci
def test_a_full_drive_is_reported_and_survived(tmp_path):
    """A real one: a tmpfs of 600 kB in a namespace of its own."""
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system lets users make no namespaces")
    (tmp_path / "drive").mkdir()
    done = subprocess.run(
        [*unshare, "bash", "-c", FILLS_THE_DRIVE, "-", tmp_path, sys.executable],
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
        env={**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parents[2])},
    )
    assert done.stderr.count("No space left on device; training continues") == 1
    assert "works again, up to step 4" in done.stderr
    assert done.stdout.strip().endswith(" 4")
