"""Faults in corpora are refused with file, line and remedy, or counted and named in the log.

Unit tests of the readers have the faults of single files. Here are some of files and of splits.
"""

import contextlib
import dataclasses
import io
import pathlib
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.config import Config, DataConfig, ModelConfig, TrainingConfig
from jaxformer.data.bpe import train_byte_pair_model
from jaxformer.data.file_corpora import TextCorpus
from jaxformer.data.numerals import NumeralsCorpus
from jaxformer.errors import exit_code
from jaxformer.experiment import make_optimizer, make_task
from jaxformer.runs.workdir import Workdir
from jaxformer.tasks.dataset import open_dataset
from jaxformer.tasks.translation import Translation
from jaxformer.training.fitting import fit
from jaxformer.training.mesh import make_mesh
from jaxformer.training.placement import BatchShards

from ..runs import reports, write_lines, write_pairs

MODEL = ModelConfig(vocab_size=300, d_model=8, d_ff=16, num_heads=2, num_layers=1, max_length=64)
TRAINING = TrainingConfig(steps=3, eval_sentences=2)
HELD_OUT = NumeralsCorpus().pairs("held_out")
PAIRS = [pair for pair in HELD_OUT if len(pair[0]) < 45][:200]
# Paths are relative to the folder of the corpus.
TEXT = DataConfig(corpus="text", train="train", valid="valid", max_length=64, tokens_per_batch=256)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Returns a folder with a corpus without faults, which is the working directory."""
    monkeypatch.setenv("JAXFORMER_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "corpus"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for split, count in (("train", 200), ("valid", 150)):
        write_pairs(folder / split, PAIRS[:count])
    return folder


class Opened(NamedTuple):
    code: int
    messages: str
    task: Translation | None


def open_task(config, corpus=None, workdir="../run"):
    """Opens a task as a command does that trains on a corpus."""
    whole = Config(model=MODEL, data=config, training=TRAINING)
    found = []

    def command():
        found.append(make_task(whole, Workdir(pathlib.Path(workdir)), corpus))

    messages = io.StringIO()
    with contextlib.redirect_stderr(messages):
        code = exit_code(command)
    return Opened(code, messages.getvalue(), found[0] if found else None)


def summary_of_good(config):
    """Opens a task without an error or a message; returns the lines of its summary."""
    opened = open_task(config)
    assert opened.code == 0
    assert opened.messages == ""
    return opened.task.summary().split("\n")


def change(names, edit):
    """Applies ``edit`` to the bytes of files in the working directory."""
    for path in map(pathlib.Path, names.split()):
        path.write_bytes(edit(path.read_bytes()))


def edit_line(number, edit):
    """Returns a function that applies ``edit`` to a line of some bytes, without its end."""

    def apply(whole):
        lines = whole.split(b"\n")
        index = number - 1
        lines[index] = edit(lines[index])
        return b"\n".join(lines)

    return apply


def replace(number, new):
    return edit_line(number, lambda line: new)


def fault(config, names, edit, message):
    return pytest.param(config, names, edit, message, id=message[:60])


NO_TEXT = "expected text to learn a vocabulary from: all lines are empty"
TWO_CORPORA = dataclasses.replace(TEXT, train="train,valid")
NO_WEIGHTS = r"train,valid\.en: no such file; several corpora need weights, as in --config"
FAULTS = [
    fault(TEXT, "valid.de", replace(9, b"f\xff"), r"^error: valid\.de:9: not UTF-8: byte 0xff"),
    fault(TEXT, "train.en train.de", lambda whole: b"", f"^error: train: {NO_TEXT}"),
    fault(TWO_CORPORA, "", None, NO_WEIGHTS),
]


@pytest.mark.parametrize(("config", "names", "edit", "message"), FAULTS)
def test_fault_is_refused_in_one_line(config, names, edit, message, folder):
    change(names, edit)

    code, error, _ = open_task(config)
    assert code == 2
    assert re.fullmatch("error: .*\n", error)
    assert re.search(message, error)

    # Nothing half-written: no workdir, and no store of the split with the fault.
    assert not (folder.parent / "run").exists()
    assert not list((folder.parent / "cache").glob("partial-*"))


def test_a_given_tokenizer_has_the_placeholders_and_no_control_symbols(folder):
    config = dataclasses.replace(TEXT, tokenizer="../my.model", user_defined_symbols="<name>")
    lines = [side for pair in PAIRS for side in pair]

    for options, message in (
        ({}, "data.user_defined_symbols: expected a tokenizer with the token <name>, got one"),
        ({"control_symbols": ["<2de>"]}, "got <2de>; give spm_train --user_defined_symbols"),
    ):
        model = train_byte_pair_model(iter(lines), 300, **options)
        pathlib.Path("../my.model").write_bytes(model)
        assert message in open_task(config).messages


def test_a_corpus_without_faults_has_no_notes(folder):
    counts, _, *examples = summary_of_good(TEXT)

    none = "0 skipped (0 longer than 64 tokens, 0 with an empty side)"
    assert counts == f"200 training pairs, {none}; 150 validation pairs, {none}"

    english, german = PAIRS[0]
    first_pair = f'en "{english}" -> de "{german}"'
    assert examples == [f"data: train: {first_pair}", f"data: valid: {first_pair}"]


def test_pairs_are_counted_and_named(folder):
    for number in range(3, 15):
        change("train.en", replace(number, b""))
    change("train.de", edit_line(30, lambda line: line * 20))
    change("valid.en", edit_line(1, lambda line: line * 20))
    change("train.en", edit_line(31, lambda line: line + "\u2028end\u202e".encode()))
    change("valid.de", edit_line(32, lambda line: line + b"\tend"))
    change("train.en", lambda whole: b"\xef\xbb\xbf" + whole)

    for _ in range(2):  # the second time from the cache
        code, messages, task = open_task(TEXT)
        assert code == 0
        assert messages == ""

        lines = task.summary().split("\n")
        first, _, _, _, *notes = lines
        assert first == (
            "187 training pairs, 13 skipped (1 longer than 64 tokens, 12 with an empty side); 149 "
            "validation pairs, 1 skipped (1 longer than 64 tokens, 0 with an empty side)"
        )
        assert notes == [
            "unusual training pairs: 12 with an empty side, skipped (first train.en:3), 1 too "
            "long, skipped (first train.de:30), 1 with line separators, kept (first train.en:31), "
            "1 with directional marks, kept (first train.en:31); see data_notes.txt in the workdir",
            "unusual validation pairs: 1 too long, skipped (first valid.en:1), 1 with tabs or "
            "foreign blanks, kept (first valid.de:32); see data_notes.txt in the workdir",
        ]

        run = Workdir(pathlib.Path("../run"))
        task.save(run)
        assert sorted(run.data_notes.read_text().splitlines()) == [
            "training pairs too long, skipped: train.de:30",
            "training pairs with an empty side, skipped: train.en:3, train.en:4, train.en:5, "
            "train.en:6, train.en:7, train.en:8, train.en:9, train.en:10, train.en:11, "
            "train.en:12 and 2 more",
            "training pairs with directional marks, kept: train.en:31",
            "training pairs with line separators, kept: train.en:31",
            "validation pairs too long, skipped: valid.en:1",
            "validation pairs with tabs or foreign blanks, kept: valid.de:32",
        ]


def test_the_log_shows_a_first_pair_of_each_corpus(folder):
    odd_pair = "a\u202eb\u00a0" + "c" * 99 + "\tein"
    for name, pair in (("swapped", "eins\tone"), ("odd", odd_pair)):
        write_lines(pathlib.Path(name), ["\t", pair, *["two\tzwei"] * 40])
    config = dataclasses.replace(TEXT, corpus="tsv", train="swapped:1,odd:2", valid="swapped")

    examples = [line for line in summary_of_good(config) if line.startswith("data: ")]
    assert examples == [
        'data: swapped: en "eins" -> de "one"',
        'data: odd: en "a\\u202eb\\xa0' + "c" * 28 + '..." -> de "ein"',
        'data: swapped: en "eins" -> de "one"',
    ]


class Meddled(TextCorpus):
    """Text files that are changed when they are read for the ``reading``-th time."""

    def __init__(self, reading, meddle):
        super().__init__("en", "de")
        self.reading = reading
        self.meddle = meddle

    def pairs(self, split):
        self.reading -= 1
        for number, pair in enumerate(super().pairs(split)):
            if self.reading == 0 and number == 100:
                self.meddle(split)
            yield pair


def append(split):
    change(f"{split}.en {split}.de", lambda whole: whole + b"one more\n")


def exchange(split):
    for language in ("en", "de"):
        pathlib.Path("new").write_text("one\ntwo\n" * 50)
        pathlib.Path("new").rename(f"{split}.{language}")


CHANGED = r"expected the same sentence pairs each time they are read, but they changed meanwh"


# The splits are read to learn a vocabulary, to tokenize training and validation, and for BLEU.
@pytest.mark.parametrize("reading", [1, 2, 3, 4])
def test_files_that_change_while_they_are_read(reading, folder):
    files = {path: path.read_bytes() * 5 for path in folder.glob("*.??")}

    def write():
        for path, whole in files.items():
            path.write_bytes(whole)

    write()
    meddle = append if reading in (1, 4) else exchange
    code, error, _ = open_task(TEXT, Meddled(reading, meddle))
    assert code == 2
    assert re.search(rf"{CHANGED}|as many lines in", error)

    # The files as they were before must not get what has been made of the others.
    write()
    first, *_ = summary_of_good(TEXT)
    assert "1,000 training pairs, 0 skipped" in first
    assert "750 validation pairs, 0 skipped" in first


class Poisoned(Translation):
    """Gives NaN for every batch with a row that begins with the pair of line 12."""

    @property
    def loss(self):
        loss = super().loss
        [place] = np.flatnonzero(self._data.train.numbers == 11)
        source, _ = self._data.train[int(place)]
        source = source.astype(np.int32)

        def poisoned(params, batch, randomness):
            sums = loss(params, batch, randomness)
            begin = batch.src[:, : len(source)]
            if begin.shape[1] < len(source):  # Batches of validation can be shorter.
                return sums

            found = jnp.all(begin == source, axis=1).any()
            factor = jnp.where(found, jnp.nan, 1.0)
            return sums | {"loss": sums["loss"] * factor}

        return poisoned


def packed_texts(tokenizer, batch):
    """Returns the source texts of a batch of packed rows."""
    texts = []
    for row, segments in zip(batch.src, batch.src_segments, strict=True):
        for segment in range(1, segments.max() + 1):
            ids = row[segments == segment]
            texts.append(tokenizer.decode(ids.tolist()))
    return texts


@pytest.mark.ci
def test_all_pairs_of_a_skipped_step_are_named(folder, capsys):
    for number in (3, 4):
        change("train.en", replace(number, b""))
    training = dataclasses.replace(TRAINING, steps=60, log_every=20, eval_sentences=0)
    data = dataclasses.replace(TEXT, batching="packing")
    config = Config(model=MODEL, data=data, training=training)
    dataset = open_dataset(config, Workdir(pathlib.Path("../run")))
    task = Poisoned(config, dataset)
    mesh = make_mesh(devices=jax.devices()[:1])

    fit(task, make_optimizer(config), "../run", training, config=config, mesh=mesh)
    log = capsys.readouterr().err
    skipped = reports(folder.parent / "run", "skipped")
    assert skipped

    for report in skipped:
        step = report["step"]
        numbers = report["examples"]
        assert 12 in numbers
        assert not {3, 4} & set(numbers)

        batches = task.batches(step - 1, BatchShards.of(mesh))
        batch = next(batches)
        sources = [PAIRS[number - 1][0] for number in numbers]
        assert sorted(packed_texts(dataset.tokenizer, batch)) == sorted(sources)

        first = [f"train.en:{number}" for number in numbers[:10]]
        named = ", ".join(first)
        more = f" and {len(numbers) - 10} more" if len(numbers) > 10 else ""
        assert (
            f"step {step} skipped: its update was NaN or Inf; it had {len(numbers)} pairs: "
            f"{named}{more}; metrics.jsonl has the numbers of all\n"
        ) in log
