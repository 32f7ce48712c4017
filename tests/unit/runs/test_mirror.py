"""The second copy of a run: complete, verified, and nothing that training waits for."""

import contextlib
import errno
import functools
import logging
import os
import pathlib
import shutil
import time

import jax
import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.runs import mirror as mirror_module
from jaxformer.runs.checkpoints import Checkpoints
from jaxformer.runs.mirror import Mirror, fetch_copy, start_mirror
from jaxformer.runs.workdir import Workdir

from ...runs import contents

TEMPLATE = {"params": {"w": jax.ShapeDtypeStruct((1000,), np.float32)}}


@pytest.fixture(autouse=True)
def _warnings(caplog):
    caplog.set_level(logging.WARNING, "jaxformer")


@pytest.fixture
def run(tmp_path):
    folder = Workdir(tmp_path / "run")
    folder.path.mkdir()
    for name in ("config.json", "identity.json", "tokenizer.model", "metrics.jsonl", "lock"):
        (folder.path / name).write_text(f"content of {name}")
    return folder


@pytest.fixture
def copy(tmp_path):
    (tmp_path / "drive").mkdir()
    return Workdir(tmp_path / "drive" / "copy")


@pytest.fixture
def two_steps(run, copy):
    """Saves and copies the steps 1 and 2."""
    with trained(run, copy) as save:
        save(1)
        save(2)


@contextlib.contextmanager
def trained(run, copy, keep=2):
    """Yields a function that saves steps with small states, as a run with a mirror does."""
    with Mirror(run, copy) as mirror:

        def on_commit(step):
            run.record_commit(step)
            mirror.update()

        with Checkpoints(run.checkpoints, keep=keep, on_commit=on_commit) as checkpoints:

            def save(step, score=None):
                checkpoints.save(step, state_of(step), metadata={})
                checkpoints.wait()
                if score is not None:
                    checkpoints.attach_score(step, score)

            yield save


def state_of(step):
    rng = np.random.default_rng(step)
    return {"params": {"w": rng.random(1000, np.float32)}}


def restored(folder):
    """Returns the newest step, after a comparison of its values with the saved ones."""
    found = Checkpoints(folder.checkpoints).restore(TEMPLATE)

    values = found.state["params"]["w"]
    expected = state_of(found.step)["params"]["w"]
    np.testing.assert_array_equal(values, expected)
    return found.step


def files_of(folder):
    """Returns the content of all files by name, without the lock."""
    files = contents(folder.path)
    return {path: content for path, content in files.items() if pathlib.Path(path).name != "lock"}


def wait_for(text, caplog):
    deadline = time.monotonic() + 60
    while text not in caplog.text:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_has_the_same_files_and_brings_them_back(run, copy):
    with trained(run, copy) as save:
        save(1, 5.0)
        save(2, 1.0)
        save(3, 1.0)
        save(4, 1.0)

    # A step that is being copied is not deleted before the next one.
    kept = Checkpoints(run.checkpoints).steps()
    assert kept in ([1, 3, 4], [1, 2, 3, 4])

    before = files_of(run)
    assert Checkpoints(copy.checkpoints).steps() == kept
    assert files_of(copy) == before
    assert not (copy.path / "lock").exists()

    shutil.rmtree(run.path)
    run.path.mkdir()
    assert fetch_copy(copy, run) == kept
    assert files_of(run) == before
    assert fetch_copy(copy, run) == []
    assert restored(run) == 4


def test_a_half_copied_step_is_not_used(run, copy, caplog, two_steps):
    shutil.rmtree(run.path)
    (copy.checkpoints / "2" / "manifest.json").unlink()

    assert fetch_copy(copy, run) == [1]
    assert f"copy of step 2 in {copy.path} not used: " in caplog.text
    assert restored(run) == 1

    with trained(run, copy) as save:  # the next run completes it
        save(2)
    assert files_of(copy) == files_of(run)
    assert restored(copy) == 2


def test_a_run_does_not_start_over_if_all_copies_are_bad(run, copy, two_steps):
    shutil.rmtree(run.path)
    for step in ("1", "2"):
        (copy.checkpoints / step / "_METADATA").write_text("{}")

    with pytest.raises(UserError, match=r"but .*/1, .*/2 are damaged; repair .*copy, or move it"):
        fetch_copy(copy, run)

    copy.committed.unlink()  # no copy was ever completed
    assert fetch_copy(copy, run) == []
    assert not run.config.exists()


def test_a_damaged_step_does_not_replace_its_good_copy(run, copy, caplog):
    with trained(run, copy) as save:
        save(1, 0.0)
        save(2)

    # Step 2 is damaged, and step 1 gets another score.
    manifest = run.checkpoints / "2" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b"1", b"2", 1))
    score = run.checkpoints / "1" / "score.json"
    score.unlink()
    with Checkpoints(run.checkpoints, keep=2) as checkpoints:
        checkpoints.attach_score(1, 5.0)

    with Mirror(run, copy) as mirror:
        mirror.update()
    assert "cannot copy the run" in caplog.text
    assert restored(copy) == 2
    copied_score = copy.checkpoints / "1" / "score.json"
    assert copied_score.read_bytes() == score.read_bytes()

    assert fetch_copy(copy, run) == [2]  # and the good copy replaces the damaged step
    assert restored(run) == 2
    assert (run.checkpoints / "2.damaged").is_dir()


def test_damage_on_the_way_is_noticed(run, copy, caplog, monkeypatch):
    """The drive returns other bytes than were written."""
    copy_file = mirror_module._copy_file

    def damaged(source, target):
        copy_file(source, target)
        if target.name == "_METADATA":
            target.write_bytes(target.read_bytes()[:-1] + b"?")

    monkeypatch.setattr(mirror_module, "_copy_file", damaged)
    monkeypatch.setattr(mirror_module, "_RETRY_SECONDS", 0.01)

    with trained(run, copy) as save:
        save(1)
        wait_for("_METADATA has changed since it was saved; training continues", caplog)
        assert not (copy.checkpoints / "1" / "manifest.json").exists()
        monkeypatch.undo()

    assert restored(copy) == 1


def test_a_failing_drive_is_reported_and_survived(run, copy, caplog, monkeypatch):
    """The drive is unmounted after step 1 and mounted again after step 2."""
    monkeypatch.setattr(mirror_module, "_RETRY_SECONDS", 0.05)
    drive = copy.path.parent
    unmounted = drive.with_name("unmounted")

    with trained(run, copy) as save:
        drive.rename(unmounted)
        save(1)
        save(2)
        wait_for(f"cannot copy the run to {copy.path}: [Errno 2]", caplog)
        time.sleep(0.3)

        unmounted.rename(drive)
        wait_for(f"copying the run to {copy.path} works again, up to step 2", caplog)
        save(3)
    assert caplog.text.count("cannot copy the run") == 1
    assert files_of(copy) == files_of(run)

    # It is still unmounted at the end of the next run.
    with trained(run, copy) as save:
        drive.rename(unmounted)
        save(4)
    assert f"the copy of the run in {copy.path} is incomplete: [Errno 2]" in caplog.text
    assert restored(run) == 4


def test_rename_and_locks_are_not_needed(run, copy, monkeypatch):
    def refused(source, *rest, function, **named):
        if "drive" in str(source):
            raise OSError(errno.ENOTSUP, "Operation not supported", str(source))
        return function(source, *rest, **named)

    for name in ("rename", "replace", "link", "symlink"):
        function = functools.partial(refused, function=getattr(os, name))
        monkeypatch.setattr(os, name, function)

    with trained(run, copy, keep=1) as save:
        save(1)
        save(2)
    assert files_of(copy) == files_of(run)
    kept = Checkpoints(run.checkpoints).steps()
    assert kept in ([2], [1, 2])

    shutil.rmtree(run.path)
    assert fetch_copy(copy, run) == kept


def test_a_mirror_whose_name_is_not_utf8_is_refused_before_training(run, tmp_path):
    mirror = str(tmp_path / "copy\udcff")
    with pytest.raises(UserError, match="expected a path in UTF-8"), start_mirror(run, mirror):
        pytest.fail("training would begin")
