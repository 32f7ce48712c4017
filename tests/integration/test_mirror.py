"""The second copy of a run, its setting ``mirror``; test_kills.py has one of a real train.py."""

import json
import logging
import shutil
from typing import Any, NamedTuple

import pytest

from jaxformer.errors import UserError
from jaxformer.runs.checkpoints import Checkpoints
from jaxformer.runs.workdir import Workdir

from ..runs import contents, reports
from . import test_user_task
from .test_user_task import assert_equal


class FinishedRun(NamedTuple):
    """The final state of a run, and its folder."""

    state: Any
    folder: Workdir


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Returns a run of 12 steps that saved 4, 8 and 12."""
    folder = Workdir(tmp_path_factory.mktemp("uninterrupted") / "run")
    state = test_user_task.run(folder.path)
    return FinishedRun(state, folder)


@pytest.fixture(autouse=True)
def _warnings(caplog):
    caplog.set_level(logging.WARNING, "jaxformer")


@pytest.fixture
def run(tmp_path):
    return Workdir(tmp_path / "run")


@pytest.fixture
def copy(tmp_path):
    (tmp_path / "drive").mkdir()
    return Workdir(tmp_path / "drive" / "copy")


@pytest.fixture
def train(run, copy):
    def train(mirror=copy.path, **settings):
        return test_user_task.run(run.path, mirror=str(mirror), **settings)

    return train


def reports_of(folder):
    found = []
    for report in reports(folder.path):
        found.append((report["kind"], report["step"], report["loss"]))
    return found


@pytest.mark.parametrize("lost", ["everything", "checkpoints"])
def test_a_run_resumes_from_its_mirror(lost, train, run, copy, caplog, uninterrupted):
    train(steps=8)
    files = contents(run.path).keys() - {"lock"}
    names = {name for name in files if "tensorboard" not in name}
    assert contents(copy.path).keys() == names

    shutil.rmtree(run.path if lost == "everything" else run.checkpoints)
    state = train()

    assert_equal(state, uninterrupted.state)
    assert f"brought back the checkpoints of steps 4, 8 from {copy.path}" in caplog.text
    for folder in (run, copy):
        assert reports_of(folder) == reports_of(uninterrupted.folder)
        assert Checkpoints(folder.checkpoints).steps() == [4, 8, 12]


def test_a_mirror_of_other_data_changes_nothing(train, run, copy, uninterrupted):
    """Even if it has newer steps and a longer history."""
    for folder in (run, copy):
        shutil.copytree(uninterrupted.folder.path, folder.path)
    shutil.rmtree(run.checkpoints / "12")
    identity = json.loads(run.identity.read_text())
    changed = {name: value[::-1] for name, value in identity.items()}
    run.identity.write_text(json.dumps(changed))
    run.metrics.write_text("")

    before = contents(run.path)
    theirs = contents(copy.path)
    with pytest.raises(UserError, match=f"{copy.path}: the run began with other data"):
        train()
    assert contents(run.path) == before
    assert contents(copy.path) == theirs


def test_unsuitable_folders_are_refused(train, run, copy, tmp_path, uninterrupted):
    def refused(expected, mirror=copy.path, **changes):
        with pytest.raises(UserError, match=expected):
            train(mirror=mirror, **changes)
        assert not run.config.exists()

    refused("two separate folders", run.path / "copy")
    refused("in the existing folder .*nowhere; mount its drive", tmp_path / "nowhere" / "copy")
    refused("mount the bucket", "gs://bucket/run")

    copy.checkpoints.mkdir(parents=True)
    refused("expected an empty folder or a copy of this run, found checkpoints")

    shutil.rmtree(copy.path)
    shutil.copytree(uninterrupted.folder.path, copy.path)
    refused("copy: holds a run with fit.seed=0, but 5 was given", seed=5)


def test_a_first_copy_that_was_cut_off_is_made_anew(train, run, copy, uninterrupted):
    """The machine disappeared after the first file."""
    shutil.copytree(uninterrupted.folder.path, run.path)
    copy.path.mkdir(parents=True)
    shutil.copy(run.config, copy.config)

    train()

    assert Checkpoints(copy.checkpoints).steps() == [4, 8, 12]
    assert copy.identity.read_bytes() == run.identity.read_bytes()
