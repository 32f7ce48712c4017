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

from jaxformer.checkpoint import Checkpoints, Mirror
from jaxformer.checkpoint import mirror as mirror_module
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


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def damage(step):
    flip(max(step.rglob("*"), key=lambda path: path.is_file() and path.stat().st_size))


def test_is_a_workdir_with_the_same_files(config, run, copy):
    train(config(eval_every=2), run.path)
    expected = {name: content for name, content in files_of(run).items() if is_ours(name)}
    assert files_of(copy) == expected
    assert Checkpoints(copy.checkpoints).best_step() == Checkpoints(run.checkpoints).best_step()
    for weights in ("latest", "best"):
        found, expected = (load_model(f.path, weights=weights)[1] for f in (copy, run))
        assert_equal_states(found, expected)


def test_a_run_that_lost_everything_resumes_from_it(config, run, copy, caplog):
    expected = train(config(eval_every=2), run.path)
    whole = files_of(run)
    for lost in (run.path, run.checkpoints):
        shutil.rmtree(run.path)
        shutil.rmtree(copy.path)
        train(config(steps=4, eval_every=2), run.path)
        shutil.rmtree(lost)
        caplog.clear()
        assert_equal_states(train(config(eval_every=2), run.path), expected)
        assert f"brought back the checkpoints of steps 2, 4 from {copy.path}" in caplog.text
        now = files_of(run)
        assert now.keys() >= {name for name in whole if name.endswith(".json")}
        reports = [
            [(r["kind"], r["step"], r["loss"]) for r in map(json.loads, lines.splitlines())]
            for lines in (now["metrics.jsonl"], whole["metrics.jsonl"])
        ]
        assert reports[0] == reports[1]
    assert (
        Checkpoints(run.checkpoints).steps() == Checkpoints(copy.checkpoints).steps() == [2, 4, 6]
    )


def test_steps_of_another_machine_that_are_newer_are_brought_back(config, run, copy, tmp_path):
    """A run moves to another machine and back, each with its own disk."""
    train(config(steps=2), run.path)
    train(config(steps=4), tmp_path / "other machine")
    expected = train(config(), tmp_path / "other machine")
    shutil.rmtree(copy.checkpoints / "6")
    assert_equal_states(train(config(), run.path), expected)
    metrics = [json.loads(line) for line in run.metrics.read_bytes().splitlines()]
    assert [r["step"] for r in metrics if r["kind"] == "train"] == [2, 4, 6]


@pytest.mark.parametrize("bad", ["damaged", "half-copied", "all", "all of a run that has begun"])
def test_bad_copies_of_steps_are_not_used(bad, config, run, copy, caplog):
    expected = train(config(steps=4), run.path)
    shutil.rmtree(run.path)
    if bad == "half-copied":
        (copy.checkpoints / "4" / "manifest.json").unlink()
    else:
        damage(copy.checkpoints / "4")
    if "all" in bad:
        damage(copy.checkpoints / "2")
    if bad == "all":
        with pytest.raises(UserError, match=r"found none: .*/2/.*/4/.*Repair .*copy, or move it"):
            train(config(steps=4), run.path)
        assert not run.config.exists()
        return
    if bad == "all of a run that has begun":  # which has never completed a copy
        copy.committed.unlink()
    caplog.clear()
    assert_equal_states(train(config(steps=4), run.path), expected)
    assert "copy of a checkpoint not used: " in caplog.text
    assert ("steps 2 from" in caplog.text) == ("all" not in bad)
    shutil.rmtree(run.checkpoints)  # the copy is repaired
    assert_equal_states(train(config(steps=4), run.path), expected)


def test_failing_copies_are_reported_and_survived(config, run, copy, caplog, tmp_path, monkeypatch):
    """The drive is unmounted after step 2 and mounted again after step 4."""
    expected = train(config(mirror=None), tmp_path / "without")
    monkeypatch.setattr(mirror_module, "_RETRY_SECONDS", 0.05)

    def wait_for(text):
        deadline = time.monotonic() + 60
        while text not in caplog.text:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def unmount(step, state, sums):
        if step == 3:
            copy.path.parent.rename(tmp_path / "unmounted")
        if step == 5:
            wait_for(f"cannot copy the run to {copy.path}: [Errno 2]")
            time.sleep(0.3)
            (tmp_path / "unmounted").rename(copy.path.parent)
            wait_for(f"copying the run to {copy.path} works again, up to step 4")

    assert_equal_states(train(config(), run.path, hooks=[unmount]), expected)
    assert caplog.text.count("cannot copy the run") == 1
    assert Checkpoints(copy.checkpoints).steps() == [2, 4, 6]
    (copy.path.parent).rename(tmp_path / "unmounted")
    copy.path.parent.touch()
    with pytest.raises(UserError, match="mount its drive first"):
        train(config(steps=8), run.path)


def test_rename_and_locks_are_not_needed(config, run, copy, monkeypatch):
    def refuse(name):
        function = getattr(os, name)

        def refused(source, *rest, **named):
            if "drive" in str(source):
                raise OSError(errno.ENOTSUP, "Operation not supported", str(source))
            return function(source, *rest, **named)

        monkeypatch.setattr(os, name, refused)

    for name in ("rename", "replace", "link", "symlink"):
        refuse(name)
    expected = train(config(), run.path)
    shutil.rmtree(run.path)
    assert_equal_states(train(config(), run.path), expected)


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


def test_unsuitable_folders_are_refused(config, run, copy, tmp_path, tiny_config):
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
    train(config(steps=2), tmp_path / "other")
    refused("copy: holds a run with training.seed=0, but 5 was given", seed=5)


def states(directory, steps, on_step, **rest):
    """Saves small states of some steps."""
    with Checkpoints(directory, **rest) as checkpoints:
        for step in steps:
            checkpoints.save(step, {"params": {"w": np.full(1000, step)}}, metadata={})
            checkpoints.wait()
            on_step(step)


def test_slow_copies_delay_nothing_and_the_newest_comes_first(run, copy, monkeypatch):
    """Each copy takes the time of several steps, and the run keeps only one checkpoint."""
    copy_file, copied = mirror_module._copy_file, []

    def slowly(source, target):
        time.sleep(0.1)
        copy_file(source, target)

    monkeypatch.setattr(mirror_module, "_copy_file", slowly)
    copy.path.parent.mkdir()
    run.path.mkdir()
    times, seen = [], set()

    def on_step(step):
        began = time.monotonic()
        mirror.update()
        times.append(time.monotonic() - began)
        seen.update(int(path.parent.name) for path in copy.checkpoints.glob("*/manifest.json"))
        time.sleep(0.1)

    with Mirror(run, copy) as mirror:
        states(run.checkpoints, range(1, 31), on_step, keep=1)
    assert max(times) < 0.1
    assert Checkpoints(copy.checkpoints).steps() == [30]
    assert 1 < len(seen) < 25
    assert copied == sorted(copied)


@pytest.mark.slow
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
    assert process.returncode != 0
    saved = newest(folder)
    assert f"step {saved} is saved" in errors
    assert newest(copy) == saved  # the last copy was completed
    params = load_model(copy, weights=saved)[1]
    assert_equal_states(params, load_model(folder, weights=saved)[1])
    whole = start_training(
        tmp_path / "whole", **{**settings, "training.steps": saved, "training.mirror": ""}
    )
    _, errors = whole.communicate(timeout=300)
    assert whole.returncode == 0, errors
    assert_equal_states(params, load_model(tmp_path / "whole", weights=saved)[1])


def newest(folder):
    """Returns the newest complete step."""
    paths = (folder / "checkpoints").glob("*/manifest.json")
    return max((int(path.parent.name) for path in paths if path.parent.name.isdecimal()), default=0)


FILLS_THE_DRIVE = """
mount -t tmpfs -o size=300k none "$1"/drive
exec "$2" - "$1" <<EOF
import pathlib, sys, time
import numpy as np
from jaxformer.checkpoint import Checkpoints, Mirror
from jaxformer.workdir import Workdir

root = pathlib.Path(sys.argv[1])
run, copy = Workdir(root / "run"), Workdir(root / "drive" / "copy")
(root / "drive" / "other").write_bytes(bytes(200_000))
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


@pytest.mark.slow
def test_a_full_drive_is_reported_and_survived(tmp_path):
    """A real one: a tmpfs of 300 kB in a namespace of its own."""
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
