"""No file of a user is removed or overwritten, and no output is written to an unexpected place."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

from jaxformer.checkpoint import Checkpoints
from jaxformer.cli import main
from jaxformer.errors import UserError
from jaxformer.experiment import train
from jaxformer.files import cache_directory
from jaxformer.inference.quantization import quantize
from jaxformer.inference.translator import Translator
from jaxformer.inference.weights import average
from jaxformer.interop.marian import import_marian
from jaxformer.workdir import Workdir

MARIAN = pathlib.Path(__file__).parents[1] / "fixtures" / "marian" / "swish_tied"


def contents(folder):
    """Returns all files below a folder, with their bytes."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def convert(tiny_workdir):
    """Returns commands that create a workdir, by name."""
    return {
        "import": lambda folder: ["import", "marian", str(MARIAN), "--workdir", str(folder)],
        "quantize": lambda folder: [
            *("quantize", "--workdir", str(tiny_workdir), "--output", str(folder))
        ],
    }


@pytest.mark.parametrize("command", ["import", "quantize"])
@pytest.mark.parametrize("name", ["checkpoints/precious.txt", "tokenizer.model", "identity.json"])
def test_folder_with_other_files_is_refused(command, name, convert, tmp_path, capsys):
    mine = tmp_path / name
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("{}")
    assert main(convert[command](tmp_path)) == 2
    message = f"holds {name.split('/')[0]}, which jaxformer {command} did not write; name another"
    assert message in capsys.readouterr().err
    assert contents(tmp_path) == {name: b"{}"}


def test_training_does_not_overwrite_a_tokenizer(tiny_config, tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(b"mine")
    with pytest.raises(UserError, match="expected no tokenizer, or the one of this run, found"):
        train(tiny_config(), tmp_path)
    assert (tmp_path / "tokenizer.model").read_bytes() == b"mine"
    assert not (tmp_path / "config.json").exists()


@pytest.mark.parametrize("command", ["import", "quantize"])
def test_unrelated_files_stay(command, convert, tmp_path, capsys):
    for name in ("checkpoints.old", "checkpoints.new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "precious.txt").write_text("years of work")
    (tmp_path / "notes.txt").write_text("mine")
    before = contents(tmp_path)
    assert main(convert[command](tmp_path)) == 0
    assert before.items() <= contents(tmp_path).items()
    assert Translator.load(tmp_path).weights == "step 0"


@pytest.mark.parametrize("command", ["import", "quantize"])
def test_killed_command_can_start_again(command, convert, tiny_config, tmp_path):
    folder = tmp_path / "model"
    process = subprocess.Popen([sys.executable, "-m", "jaxformer.cli", *convert[command](folder)])
    deadline = time.monotonic() + 60
    while not (folder / "identity.json").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.001)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not (folder / "config.json").exists()
    # Only the command that began may continue.
    other = {"import": "quantize", "quantize": "import"}[command]
    assert main(convert[other](folder)) == 2
    with pytest.raises(UserError, match=f"but jaxformer {command} has begun to write a workdir"):
        train(tiny_config(), folder)
    assert main(convert[command](folder)) == 0
    assert Translator.load(folder).weights == "step 0"
    names = {path.name for path in folder.iterdir()}
    assert names == {"config.json", "identity.json", "tokenizer.model", "checkpoints"}


def test_average_replaces_only_averages(tiny_workdir, tmp_path):
    folder = Workdir(shutil.copytree(tiny_workdir, tmp_path / "run"))
    shutil.copytree(folder.checkpoints, folder.path / "averaged.old")  # The user's copy.
    before = contents(folder.path)
    for last in (2, 3):
        assert len(average(folder, last)) == last
        assert before.items() <= contents(folder.path).items()
    shutil.rmtree(folder.averaged)
    folder.averaged.mkdir()
    (folder.averaged / "plot.svg").write_text("mine")
    with pytest.raises(UserError, match=r"averaged/plot.svg is none; move it away"):
        average(folder, 2)
    assert (folder.averaged / "plot.svg").read_text() == "mine"


@pytest.mark.parametrize("url", ["gs://bucket/run", pathlib.Path("gs://bucket/run")])
def test_urls_are_refused_before_any_work(url, tiny_config, tiny_workdir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for work in (
        lambda: train(tiny_config(), url),
        lambda: Translator.load(url),
        lambda: quantize(url, "out"),
        lambda: quantize(tiny_workdir, url),
        lambda: import_marian(MARIAN, pathlib.Path(url)),
        lambda: import_marian(pathlib.Path(url), tmp_path / "out"),
        lambda: Workdir(pathlib.Path(url)),
        lambda: Checkpoints(pathlib.Path(url), keep=1),
    ):
        with pytest.raises(UserError, match="expected a path on a local disk: got gs:/"):
            work()
    monkeypatch.setenv("JAXFORMER_CACHE", str(url))
    with pytest.raises(UserError, match="expected a path on a local disk: got gs:/"):
        cache_directory()
    assert os.listdir(tmp_path) == []
