"""A run whose checkpoints are not there, since a disk is not mounted, does not start over."""

import json
import shutil

import pytest

from jaxformer.checkpoint import Checkpoints
from jaxformer.errors import UserError
from jaxformer.experiment import train
from jaxformer.workdir import Workdir


@pytest.fixture
def folder(tiny_workdir, tmp_path):
    """The workdir of a finished run, its checkpoints on a disk of their own."""
    folder = Workdir(shutil.copytree(tiny_workdir, tmp_path / "run"))
    folder.checkpoints.rename(tmp_path / "disk")
    return folder


def state_of(folder):
    return {path.name: path.read_bytes() for path in folder.path.iterdir() if path.is_file()}


@pytest.mark.parametrize("place", ["gone", "empty", "link"])
def test_is_refused_and_nothing_changes(place, folder, tiny_config):
    if place == "empty":  # a mount point
        folder.checkpoints.mkdir()
    elif place == "link":
        folder.checkpoints.symlink_to(folder.path / "nowhere")
    before = state_of(folder)
    message = r"checkpoints: expected .* of this run, the last one of step 6, found none; "
    with pytest.raises(UserError, match=message + "mount or .* another --workdir, or move .*run "):
        train(tiny_config(steps=8), folder.path)
    assert {**state_of(folder), "lock": b""} == {**before, "lock": b""}
    assert len(before["metrics.jsonl"].splitlines()) == 4


def test_goes_on_when_they_are_back(folder, tiny_config, tmp_path, capsys):
    """Of an earlier version, too, which kept no note of them."""
    folder.committed.unlink()
    with pytest.raises(UserError, match="expected the checkpoints of this run, found none; mount"):
        train(tiny_config(), folder.path)
    folder.checkpoints.symlink_to(tmp_path / "disk")
    assert int(train(tiny_config(), folder.path).step) == 6
    assert "nothing to do" in capsys.readouterr().err
    assert folder.committed_step() == 6


def test_one_that_had_none_yet_starts_over(folder, tiny_config):
    """As after kill -9 before the first commit; what it had reported is kept."""
    folder.committed.unlink()
    folder.checkpoints.mkdir()
    before = folder.metrics.read_bytes()
    train(tiny_config(steps=2, eval_sentences=0), folder.path)
    assert Checkpoints(folder.checkpoints).steps() == [2]
    assert json.loads(folder.committed.read_bytes()) == {"step": 2}
    assert (folder.path / "metrics.after-0.jsonl").read_bytes() == before
    assert len(folder.metrics.read_bytes().splitlines()) == 2
