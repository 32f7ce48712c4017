"""A run whose checkpoints are missing, for instance on an unmounted disk, does not start over."""

import json
import pathlib
import shutil

import pytest

from jaxformer.errors import UserError
from jaxformer.runs.checkpoints import Checkpoints
from jaxformer.runs.workdir import Workdir

from .test_user_task import run


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Returns the folder of a run that has saved the steps 4 and 8."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    run(folder, steps=8)
    return folder


@pytest.fixture
def folder(finished, tmp_path):
    """Returns a copy of the folder, with its checkpoints on a separate disk."""
    folder = Workdir(shutil.copytree(finished, tmp_path / "run"))
    folder.checkpoints.rename(tmp_path / "disk")
    return folder


def state_of(folder):
    files = filter(pathlib.Path.is_file, folder.path.iterdir())
    return {path.name: path.read_bytes() for path in files}


def test_resuming_is_refused_and_changes_nothing(folder, tmp_path):
    """A link out of the workdir is refused, too: an untrusted workdir could have it."""
    before = state_of(folder)
    assert len(before["metrics.jsonl"].splitlines()) == 7

    def refused(expected):
        with pytest.raises(UserError, match=f"checkpoints: expected .* {expected}"):
            run(folder.path)
        assert state_of(folder) == before

    none = "of this run, the last one of step 8, found none; mount or .* another -"
    refused(none)

    folder.checkpoints.mkdir()  # a mount point
    refused(none)
    folder.checkpoints.rmdir()

    folder.checkpoints.symlink_to(tmp_path / "nowhere")
    refused("within .*; move all of .*run ")


def test_resumes_when_checkpoints_are_back(folder, tmp_path, capsys):
    """Also for an earlier version, which did not record the commit, and through a link."""
    folder.committed.unlink()
    with pytest.raises(UserError, match="expected the checkpoints of this run, found none; mount"):
        run(folder.path)

    link = tmp_path / "link"
    link.symlink_to(folder.path)
    (tmp_path / "disk").rename(folder.checkpoints)
    state = run(link, steps=8)

    assert int(state.step) == 8
    assert "nothing to do" in capsys.readouterr().err
    assert folder.committed_step() == 8


def test_run_without_a_checkpoint_starts_over(folder):
    """As after kill -9 before the first commit; metrics reported so far are kept."""
    folder.committed.unlink()
    folder.checkpoints.mkdir()
    before = folder.metrics.read_bytes()

    run(folder.path, steps=2)

    assert Checkpoints(folder.checkpoints).steps() == [2]
    assert json.loads(folder.committed.read_bytes()) == {"step": 2}
    assert (folder.path / "metrics.after-0.jsonl").read_bytes() == before
    assert len(folder.metrics.read_bytes().splitlines()) == 3
