"""A run whose checkpoints are missing, for instance on an unmounted disk, does not start over."""

import json
import shutil

import pytest

from jaxformer.checkpoint import Checkpoints
from jaxformer.errors import UserError
from jaxformer.experiment import train
from jaxformer.workdir import Workdir


@pytest.fixture
def folder(tiny_workdir, tmp_path):
    """Returns the workdir of a finished run, with its checkpoints on a separate disk."""
    folder = Workdir(shutil.copytree(tiny_workdir, tmp_path / "run"))
    folder.checkpoints.rename(tmp_path / "disk")
    return folder


def state_of(folder):
    return {path.name: path.read_bytes() for path in folder.path.iterdir() if path.is_file()}


@pytest.mark.parametrize("place", ["gone", "empty"])
def test_resuming_is_refused_and_changes_nothing(place, folder, tiny_config):
    if place == "empty":  # A mount point.
        folder.checkpoints.mkdir()
    before = state_of(folder)
    message = r"checkpoints: expected .* of this run, the last one of step 6, found none; "
    with pytest.raises(UserError, match=message + "mount or .* another --workdir, or move .*run "):
        train(tiny_config(steps=8), folder.path)
    assert {**state_of(folder), "lock": b""} == {**before, "lock": b""}
    assert len(before["metrics.jsonl"].splitlines()) == 4


def test_resumes_when_checkpoints_are_back(folder, tiny_config, tmp_path, capsys):
    """Also for an earlier version, which did not record the commit."""
    folder.committed.unlink()
    with pytest.raises(UserError, match="expected the checkpoints of this run, found none; mount"):
        train(tiny_config(), folder.path)
    (tmp_path / "disk").rename(folder.checkpoints)
    assert int(train(tiny_config(), folder.path).step) == 6
    assert "nothing to do" in capsys.readouterr().err
    assert folder.committed_step() == 6


@pytest.mark.parametrize("target", ["disk", "nowhere"])
def test_link_out_of_the_workdir_is_refused(target, folder, tiny_config, tmp_path):
    """A workdir of somebody else could have it, too."""
    folder.checkpoints.symlink_to(tmp_path / target)
    before = state_of(folder)
    with pytest.raises(UserError, match=r"checkpoints: expected .* within .*; move all of .*run "):
        train(tiny_config(steps=8), folder.path)
    assert state_of(folder) == before


def test_workdir_may_be_a_link(folder, tiny_config, tmp_path):
    (tmp_path / "disk").rename(folder.checkpoints)
    (tmp_path / "link").symlink_to(folder.path)
    assert int(train(tiny_config(), tmp_path / "link").step) == 6


def test_run_without_a_checkpoint_starts_over(folder, tiny_config):
    """As after kill -9 before the first commit; metrics reported so far are kept."""
    folder.committed.unlink()
    folder.checkpoints.mkdir()
    before = folder.metrics.read_bytes()
    train(tiny_config(steps=2, eval_sentences=0), folder.path)
    assert Checkpoints(folder.checkpoints).steps() == [2]
    assert json.loads(folder.committed.read_bytes()) == {"step": 2}
    assert (folder.path / "metrics.after-0.jsonl").read_bytes() == before
    assert len(folder.metrics.read_bytes().splitlines()) == 2
