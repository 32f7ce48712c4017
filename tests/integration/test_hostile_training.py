"""Resuming in a workdir of somebody else touches nothing outside of it, and never waits."""

import os
import shutil
import signal

import pytest

from jaxformer.errors import UserError
from jaxformer.experiment import train


@pytest.fixture
def run(tiny_workdir, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "mine").write_text("mine")
    signal.alarm(100)  # A FIFO would wait without end.
    yield shutil.copytree(tiny_workdir, tmp_path / "run")
    signal.alarm(0)
    assert [path.name for path in (tmp_path / "outside").iterdir()] == ["mine"]
    assert (tmp_path / "outside" / "mine").read_text() == "mine"


@pytest.mark.ci
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "FIFO") for name in ("config.json", "identity.json", "metrics.jsonl")),
        *((name, "link") for name in ("config.json", "identity.json", "metrics.jsonl", "lock")),
        *((name, "folder") for name in ("tensorboard", "averaged", "checkpoints")),
        ("metrics.after-2.jsonl", "FIFO"),
    ],
)
def test_is_refused(name, kind, run, tiny_config, tmp_path):
    path = run / name
    if path.is_dir():
        path.rename(tmp_path / "kept")
    else:
        path.unlink(missing_ok=True)
    if kind == "FIFO":
        os.mkfifo(path)
    else:
        path.symlink_to(tmp_path / "outside" / ("new" if kind == "link" else ""))
    with pytest.raises(UserError, match=r"found a (FIFO|link)|not of a folder or link|to lock"):
        train(tiny_config(steps=8), run)
