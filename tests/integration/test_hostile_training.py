"""Resuming in an untrusted workdir touches nothing outside of it, and never waits."""

import os
import shutil
import signal

import pytest

from jaxformer.errors import UserError
from jaxformer.experiment import train

KINDS = [("config.json", "FIFO"), ("metrics.jsonl", "link"), ("checkpoints", "folder")]


@pytest.mark.ci
@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_is_refused(name, kind, tiny_workdir, tiny_config, tmp_path):
    outside, run = tmp_path / "outside", shutil.copytree(tiny_workdir, tmp_path / "run")
    outside.mkdir()
    (outside / "mine").write_text("mine")
    path = run / name
    if path.is_dir():
        path.rename(tmp_path / "kept")
    else:
        path.unlink(missing_ok=True)
    if kind == "FIFO":
        os.mkfifo(path)
    else:
        path.symlink_to(outside / ("new" if kind == "link" else ""))
    signal.alarm(100)  # A FIFO would wait without end.
    with pytest.raises(UserError, match=r"found a (FIFO|link)|not of a folder or link|to lock"):
        train(tiny_config(steps=8), run)
    signal.alarm(0)
    assert [path.name for path in outside.iterdir()] == ["mine"]
    assert (outside / "mine").read_text() == "mine"
