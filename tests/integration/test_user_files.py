"""A user's own files and corpus.

No file is removed or overwritten, and no output is written to an unexpected place. A corpus of
sentence pairs works like the built-in ones, through public API only.
"""

import hashlib
import os
import pathlib
import signal
import subprocess
import sys
import time

import optax
import pytest

from jaxformer import Corpus, experiment
from jaxformer.cli import main
from jaxformer.errors import UserError
from jaxformer.experiment import train
from jaxformer.inference.conversions import quantize
from jaxformer.inference.translator import Translator
from jaxformer.interop.marian.importer import import_marian

from ..runs import changed, contents
from .conftest import TINY

MARIAN = pathlib.Path(__file__).parents[1] / "fixtures" / "marian" / "swish_tied"
CONFIG = changed(
    TINY,
    model={"vocab_size": 280, "d_model": 8, "d_ff": 16},
    data={
        "corpus": "text",
        "train": "even",
        "valid": "odd",
        "tokens_per_batch": 64,
        "max_length": 32,
    },
    training={"warmup_steps": 2, "eval_sentences": 0},
)


class Counting:
    """Numbers and their words in reverse, in a class with the two methods of a corpus."""

    target_symbols = False

    def __init__(self, last=60):
        self.last = last

    def pairs(self, split):
        first = 1 if split == "odd" else 0
        for n in range(first, self.last, 2):
            yield f"number {n}", f"{n} rebmun"

    def fingerprint(self, split):
        content = repr(list(self.pairs(split)))
        return hashlib.sha256(content.encode()).hexdigest()


@pytest.fixture
def convert(learned_workdir):
    """Returns commands that write a workdir, as functions of its folder."""

    def convert_from_marian(folder):
        return ["import", "marian", str(MARIAN), "--workdir", str(folder)]

    def quantize(folder):
        return ["quantize", "--workdir", str(learned_workdir), "--output", str(folder)]

    return {"import": convert_from_marian, "quantize": quantize}


@pytest.mark.parametrize("command", ["import", "quantize"])
def test_folder_with_other_files_is_refused(command, convert, tmp_path, capsys):
    for number, name in enumerate(("checkpoints/mine.txt", "tokenizer.model", "identity.json")):
        folder = tmp_path / str(number)
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("{}")

        assert main(convert[command](folder)) == 2

        first = name.split("/")[0]
        message = f"holds {first}, which jaxformer {command} did not write; name another"
        assert message in capsys.readouterr().err
        assert contents(folder) == {name: b"{}"}


def test_training_does_not_overwrite_a_tokenizer(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(b"mine")
    with pytest.raises(UserError, match="expected no tokenizer, or this run's, found"):
        train(CONFIG, tmp_path, corpus=Counting())
    assert (tmp_path / "tokenizer.model").read_bytes() == b"mine"
    assert not (tmp_path / "config.json").exists()


@pytest.mark.parametrize("command", ["import", "quantize"])
def test_unrelated_files_stay(command, convert, tmp_path):
    for name in ("checkpoints.old", "checkpoints.new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "precious.txt").write_text("years of work")
    (tmp_path / "notes.txt").write_text("mine")
    before = contents(tmp_path)

    assert main(convert[command](tmp_path)) == 0

    assert before.items() <= contents(tmp_path).items()
    origin = {"import": "imported from Marian: ", "quantize": "quantized from "}[command]
    assert Translator.load(tmp_path).weights.startswith(origin)


@pytest.mark.ci
def test_killed_command_can_start_again(convert, tmp_path):
    folder = tmp_path / "model"
    process = subprocess.Popen([sys.executable, "-m", "jaxformer", *convert["import"](folder)])
    deadline = time.monotonic() + 60
    while not (folder / "identity.json").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.001)

    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not (folder / "config.json").exists()

    # Only the command that began may continue.
    assert main(convert["quantize"](folder)) == 2
    with pytest.raises(UserError, match="but jaxformer import has begun to write a workdir"):
        train(CONFIG, folder, corpus=Counting())

    assert main(convert["import"](folder)) == 0
    assert Translator.load(folder).weights == f"imported from Marian: {MARIAN.name}"

    # The killed process may have left a file that it was writing, under a name that nothing reads.
    names = {path.name for path in folder.iterdir() if path.suffix != ".partial"}
    assert names == {"config.json", "identity.json", "tokenizer.model", "checkpoints"}


def test_urls_are_refused_before_any_work(learned_workdir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for work in (
        lambda url: train(CONFIG, url),
        lambda url: Translator.load(url),
        lambda url: quantize(learned_workdir, url),
        lambda url: import_marian(MARIAN, url),
    ):
        with pytest.raises(UserError, match="expected a path on a local disk: got gs:/"):
            work(pathlib.Path("gs://bucket/run"))
    assert os.listdir(tmp_path) == []


def test_corpus_and_custom_optimizer_replace_those_of_the_config(tmp_path, monkeypatch):
    assert isinstance(Counting(), Corpus)
    given = []

    def run(task, optimizer, *_, learning_rate, **__):
        pairs, _, _ = task.summary().partition(" (")
        given.append((pairs, optimizer, learning_rate))
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment, "Run", run)
    optimizer = optax.sgd(0.0)
    with pytest.raises(KeyboardInterrupt):
        train(CONFIG, tmp_path, corpus=Counting(), optimizer=optimizer)

    assert given == [("30 training pairs, 0 skipped", optimizer, None)]
