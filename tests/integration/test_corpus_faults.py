"""Faults in corpora are refused with file, line and remedy, or counted and named in the log."""

import contextlib
import dataclasses
import gzip
import io
import json
import os
import pathlib
import re
import resource
import shutil
import tempfile
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.config import Config, DataConfig, ModelConfig, StreamConfig, TrainingConfig
from jaxformer.data.numerals import NumeralsCorpus
from jaxformer.data.text_corpus import TextCorpus
from jaxformer.errors import exit_code
from jaxformer.experiment import make_optimizer, make_task
from jaxformer.tasks.dataset import open_dataset
from jaxformer.tasks.translation import Translation
from jaxformer.training.fitting import fit
from jaxformer.training.mesh import BatchShards, make_mesh
from jaxformer.workdir import Workdir

from .training_process import start_training

MODEL = ModelConfig(vocab_size=300, d_model=8, d_ff=16, num_heads=2, num_layers=1, max_length=64)
TRAINING = TrainingConfig(steps=3, eval_sentences=2)
PAIRS = [pair for pair in NumeralsCorpus().pairs("held_out") if len(pair[0]) < 45][:200]
TREES = "(S (NP (DT the) (NN gene)) (VP (VBZ works)))\n" * 30


def data(**changed) -> DataConfig:
    """Returns the config of a corpus, with paths relative to the folder of the corpus."""
    given = {"corpus": "text", "train": "train", "valid": "valid", "max_length": 64}
    return DataConfig(**(given | {"tokens_per_batch": 256} | changed))


def trees() -> DataConfig:
    return data(corpus="trees", train="train.trees,more.trees", valid="valid.trees")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Returns a folder with a corpus without faults, which is the working directory."""
    monkeypatch.setenv("JAXFORMER_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "corpus"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for split in ("train", "valid"):
        for side, language in enumerate(("en", "de")):
            some = PAIRS if split == "train" else PAIRS[:150]
            text = "".join(f"{pair[side]}\n" for pair in some)
            (folder / f"{split}.{language}").write_text(text, "utf-8")
    for name in ("train", "more", "valid"):
        (folder / f"{name}.trees").write_text(TREES)
    (folder / "play.txt").write_text("To be, or not to be.\n" * 20)
    return folder


def open_task(config, corpus=None, workdir="../run"):
    """Returns exit code, messages and the task, as a command does that trains on a corpus."""
    found, said = [], io.StringIO()

    def command():
        whole = Config(model=MODEL, data=config, training=TRAINING)
        found.append(make_task(whole, Workdir(pathlib.Path(workdir)), corpus))

    with contextlib.redirect_stderr(said):
        code = exit_code(command)
    return code, said.getvalue(), found


def replace(name, old, new):
    """Returns a function that replaces bytes of a file."""

    def spoil(folder):
        content = (folder / name).read_bytes()
        assert old in content
        (folder / name).write_bytes(content.replace(old, new, 1))

    return spoil


def change_line(name, number, change):
    """Returns a function that applies ``change`` to the bytes of a line, without its end."""

    def spoil(folder):
        lines = (folder / name).read_bytes().split(b"\n")
        lines[number - 1] = change(lines[number - 1])
        (folder / name).write_bytes(b"\n".join(lines))

    return spoil


def content(name, change):
    """Returns a function that applies ``change`` to the bytes of a file."""

    def spoil(folder):
        (folder / name).write_bytes(change((folder / name).read_bytes()))

    return spoil


def packed(name, change, pack=gzip.compress):
    """Returns a function that packs a file into NAME.gz and damages it."""

    def spoil(folder):
        (folder / f"{name}.gz").write_bytes(change(pack((folder / name).read_bytes())))
        (folder / name).unlink()

    return spoil


def instead(name, make):
    """Returns a function that puts something else in the place of a file."""

    def spoil(folder):
        (folder / name).unlink()
        make(folder / name)

    return spoil


def both(change):
    """Returns a function that applies ``change`` to both files of the training split."""

    def spoil(folder):
        for language in ("en", "de"):
            content(f"train.{language}", change)(folder)

    return spoil


def zipped(whole):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("train.en", whole)
    return stream.getvalue()


def nothing(folder):
    pass


def flip_middle(whole):
    middle = len(whole) // 2
    return whole[:middle] + bytes([whole[middle] ^ 0xFF]) + whole[middle + 1 :]


TEXT = {
    "source is longer": (
        content("train.en", lambda whole: whole + b"x\n"),
        r"as many lines in train\.en as in train\.de: got 201 and 200; line n of one must",
    ),
    "target is longer": (
        content("train.de", lambda whole: whole + b"x\nx\n"),
        r"as many lines in train\.en as in train\.de: got 200 and 202; line n of one must",
    ),
    "one side has no line": (
        content("train.de", lambda whole: b""),
        r"as many lines in train\.en as in train\.de: got 200 and 0; line n",
    ),
    "validation has fewer lines": (
        content("valid.en", lambda whole: whole.split(b"\n", 1)[1]),
        r"as many lines in valid\.en as in valid\.de: got 149 and 150",
    ),
    "not UTF-8 in the middle": (
        change_line("train.de", 77, lambda line: b"f\xffnf"),
        r"train\.de:77: not UTF-8: byte 0xff at position 2 of the line; convert the file, for .*"
        "iconv",
    ),
    "UTF-8 cut at the end": (
        content("train.de", lambda whole: whole + "fünf".encode()[:2]),
        r"train\.de:201: not UTF-8: byte 0xc3 at position 2 .*iconv",
    ),
    "Windows-1252": (
        content("train.de", lambda whole: whole.decode().encode("windows-1252")),
        r"train\.de:\d+: not UTF-8: byte 0x\w\w .*iconv -f WINDOWS-1252 -t UTF-8",
    ),
    "surrogates in UTF-8": (
        change_line("train.en", 3, lambda line: b"\xed\xa0\x80"),
        r"train\.en:3: not UTF-8: byte 0xed .*iconv",
    ),
    "UTF-16": (
        content("train.en", lambda whole: whole.decode().encode("utf-16")),
        r"train\.en:1: expected UTF-8 text, got UTF-16; convert it with iconv -f UTF-16 -t UTF-8",
    ),
    "big-endian UTF-16": (
        content("train.en", lambda whole: b"\xfe\xff" + whole.decode().encode("utf-16-be")),
        r"train\.en:1: expected UTF-8 text, got UTF-16; convert it with iconv -f UTF-16 -t UTF-8",
    ),
    "UTF-16 without a mark": (
        content("train.en", lambda whole: whole.decode().encode("utf-16-le")),
        r"train\.en:1: expected text, got a NUL byte at position 2 .*iconv -f UTF-16 -t UTF-8",
    ),
    "NUL": (
        change_line("train.en", 9, lambda line: b"ni\0ne"),
        r"train\.en:9: expected text, got a NUL byte at position 3 of the line; .*remove the NUL",
    ),
    "gzip cut short": (
        packed("train.en", lambda whole: whole[:-20]),
        r"train\.en\.gz: expected a whole gzip file: .*; copy it again, or compress it with gzip",
    ),
    "gzip with other bytes after it": (
        packed("train.en", lambda whole: whole + b"rubbish"),
        r"train\.en\.gz: expected a whole gzip file: Not a gzipped file .*; copy it again",
    ),
    "gzip with a flipped byte": (
        packed("train.en", flip_middle),
        r"train\.en\.gz: expected a whole gzip file: .*; copy it again",
    ),
    "text named .gz": (
        packed("train.en", lambda whole: whole, bytes),
        r"train\.en\.gz: expected a whole gzip file: Not a gzipped file .* compress it with gzip",
    ),
    "zip named .gz": (
        packed("train.en", lambda whole: whole, zipped),
        r"train\.en\.gz: expected a whole gzip file: Not a gzipped file \(b'PK'\); .*with gzip",
    ),
    "gzip without .gz": (
        content("train.en", gzip.compress),
        r"train\.en:1: expected UTF-8 text, got gzip; convert it with gunzip, or name it \.gz",
    ),
    "zip named .en": (
        content("train.en", zipped),
        r"train\.en:1: expected UTF-8 text, got zip; convert it with unzip",
    ),
    "Parquet named .en": (
        content("train.en", lambda whole: b"PAR1\x15\x04\x15\x10\0" + whole + b"PAR1"),
        r"train\.en:1: expected UTF-8 text, got Parquet; convert it with a program that reads",
    ),
    "xz named .en": (
        content("train.en", lambda whole: b"\xfd7zXZ\0\0\x04" + whole),
        r"train\.en:1: expected UTF-8 text, got xz; convert it with unxz",
    ),
    "wrong extension": (
        lambda folder: (folder / "train.de").rename(folder / "train.ger"),
        r"train\.de: no such file, nor train\.de\.gz; did you mean train\.\w+\?",
    ),
    "both are empty": (
        both(lambda whole: b""),
        "train: expected text to learn a vocabulary from: all lines are empty",
    ),
    "only blank lines": (
        both(lambda whole: b" \n" * 50),
        "train: expected text to learn a vocabulary from: all lines are empty",
    ),
    "a folder": (
        instead("train.de", pathlib.Path.mkdir),
        r"train\.de: expected a file, this is a folder; name a file",
    ),
    "a named pipe": (
        instead("train.de", os.mkfifo),
        r"train\.de: expected a file, this is a pipe or a device, which can be read only once",
    ),
    "a device": (
        instead("train.de", lambda path: path.symlink_to("/dev/zero")),
        r"train\.de: expected a file, this is a pipe or a device",
    ),
    "a link to nothing": (
        instead("train.de", lambda path: path.symlink_to("elsewhere.de")),
        r"train\.de: a link to elsewhere\.de, which does not exist; mount or bring back the file",
    ),
    "a link to itself": (
        instead("train.de", lambda path: path.symlink_to("train.de")),
        r"train\.de: cannot be read: Too many levels of symbolic links",
    ),
    "all lines are too long": (
        both(lambda whole: (whole[:3000].replace(b"\n", b" ") + b"\n") * 50),
        r"train: no sentence pair is left: 50 have a side longer than 64 tokens, 0 an empty side, "
        r"such as train\.en:1; raise data\.max_length",
    ),
    "no line is short enough for a vocabulary": (
        both(lambda whole: (b"word " * 1000 + b"\n") * 5),
        "expected lines of at most 4,192 bytes to learn a vocabulary from: all lines are",
    ),
    "all validation lines are one-sided": (
        content("valid.de", lambda whole: b"\n" * 150),
        r"valid: no sentence pair is left: 0 have .*, 150 an empty side, such as valid\.de:1; ",
    ),
    "lines end in CR alone": (
        both(lambda whole: whole.replace(b"\n", b"\r")),
        r"train: no sentence pair is left: 1 have .* such as train\.en:1|all lines are longer",
    ),
    "an enormous line": (
        change_line("train.en", 5, lambda line: b"x" * 1_500_000),
        r"train\.en:5: expected one sentence a line, of at most 1,000,000 bytes, got a longer "
        "line; end each line with .n, or remove this line",
    ),
}
NAMES = {
    "no such files": (
        data(train="trian"),
        r"trian\.en: no such file, nor trian\.en\.gz; did you mean train\.en\?",
    ),
    "no such folder": (
        data(train="nowhere/train"),
        r"nowhere/train\.en: no such file: there is no folder nowhere; name another",
    ),
    "no such language": (
        data(target_language="fr"),
        r"train\.fr: no such file, nor train\.fr\.gz; did you mean train\.\w+\?",
    ),
    "a language of numerals": (
        data(corpus="numerals", target_language="fr"),
        "the numerals corpus is in en and de: got 'fr' as data.source_language or data.target_la",
    ),
    "a split of numerals": (
        data(corpus="numerals", train="test"),
        "the numerals corpus has the splits train and held_out: got 'test'",
    ),
}
TREEBANK = {
    "a tree without its end": (
        content("more.trees", lambda whole: whole + b"(S (NN gene)\n"),
        r"more\.trees:31: the tree that begins here is never closed: 1 closing brackets are mis",
    ),
    "a bracket too many": (
        change_line("train.trees", 4, lambda line: line + b")"),
        r"train\.trees:4: expected \( at the beginning of a tree, got a surplus \)",
    ),
    "text outside": (
        change_line("train.trees", 5, lambda line: b"gene"),
        r"train\.trees:5: expected \( at the beginning of a tree, got 'gene'",
    ),
    "a word without brackets": (
        change_line("train.trees", 6, lambda line: b"(S (NP the gene) works)"),
        r"train\.trees:6: expected \( or \), got 'gene'; a word has a pair of brackets",
    ),
    "an empty constituent": (
        change_line("train.trees", 7, lambda line: b"(S (NP))"),
        r"train\.trees:7: expected a word or a constituent after \(NP, got \)",
    ),
    "NUL in a tree": (
        change_line("more.trees", 8, lambda line: b"(S (NN ge\0ne))"),
        r"more\.trees:8: expected text, got a NUL byte at position 10 of the line",
    ),
    "an empty treebank": (
        lambda folder: [(folder / f"{name}.trees").write_text("") for name in ("train", "more")],
        r"train\.trees,more\.trees: expected text to learn a vocabulary from: all lines are empty",
    ),
}
STREAM = {
    "no such text": (
        lambda folder: (folder / "play.txt").unlink(),
        r"data\.file: play\.txt: cannot be read: No such file or directory",
    ),
    "a folder": (
        instead("play.txt", pathlib.Path.mkdir),
        r"play\.txt: expected a file, this is a folder; name a file",
    ),
    "a named pipe": (
        instead("play.txt", os.mkfifo),
        r"play\.txt: expected a file, this is a pipe or a device",
    ),
    "not UTF-8": (
        change_line("play.txt", 3, lambda line: b"caf\xe9"),
        r"data\.file: play\.txt:3: not UTF-8, at byte 45; convert it, for example with iconv",
    ),
    "UTF-16": (
        content("play.txt", lambda whole: whole.decode().encode("utf-16")),
        r"play\.txt:1: expected UTF-8 text, got UTF-16; convert it with iconv -f UTF-16",
    ),
    "NUL": (
        change_line("play.txt", 4, lambda line: b"To \0be"),
        r"data\.file: play\.txt:4: expected text, got a NUL byte; remove it",
    ),
}
REFUSED = {
    **{f"text: {name}": (data(), *fault) for name, fault in TEXT.items()},
    **{f"names: {name}": (config, nothing, said) for name, (config, said) in NAMES.items()},
    **{f"trees: {name}": (trees(), *fault) for name, fault in TREEBANK.items()},
    **{
        f"stream: {name}": (StreamConfig(file="play.txt", length=8, rows=2), *fault)
        for name, fault in STREAM.items()
    },
}


@pytest.mark.parametrize(("config", "spoil", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_fault_is_refused_in_one_line(config, spoil, said, folder):
    spoil(folder)
    code, message, _ = open_task(config)
    assert code == 2
    assert message.startswith("error: ")
    assert message.endswith("\n")
    assert message.count("\n") == 1
    assert re.search(said, message)
    # Nothing half-written: no workdir, and no store of the split with the fault.
    assert not (folder.parent / "run").exists()
    assert not list((folder.parent / "cache").glob("partial-*"))


def add(name, number, text):
    """Returns a function that adds a text to a line of a file."""
    return change_line(name, number, lambda line: line + text.encode())


def on_lines(numbers, change):
    """Returns a function that makes the same change in several lines of train.en."""

    def spoil(folder):
        for number in numbers:
            change_line("train.en", number, change)(folder)

    return spoil


SKIPPED = "200 training pairs, 0 skipped (0 longer than 64 tokens, 0 with an empty side)"
COUNTED = {
    "one side is empty": (
        on_lines(range(3, 15), lambda line: b""),
        [
            "188 training pairs, 12 skipped (0 longer than 64 tokens, 12 with an empty side);",
            "training pairs with an empty side, skipped: train.en:3, train.en:4, train.en:5, "
            "train.en:6, train.en:7, train.en:8, train.en:9, train.en:10, train.en:11, "
            "train.en:12 and 2 more\n",
        ],
    ),
    "the target is empty": (
        change_line("train.de", 5, lambda line: b" "),
        ["training pairs with an empty side, skipped: train.de:5\n"],
    ),
    "both sides are empty": (
        lambda folder: [
            change_line(f"train.{x}", 2, lambda line: b"")(folder) for x in ("en", "de")
        ],
        ["training pairs with an empty side, skipped: train.en:2\n"],
    ),
    "only foreign blanks": (
        change_line("train.de", 6, lambda line: "\u00a0\u3000\u200b\u200e\t".encode()),
        ["training pairs with an empty side, skipped: train.de:6\n"],
    ),
    "too long": (
        change_line("train.de", 8, lambda line: line * 20),
        [
            "199 training pairs, 1 skipped (1 longer than 64 tokens, 0 with an empty side);",
            "training pairs too long, skipped: train.de:8\n",
        ],
    ),
    "too long in validation": (
        change_line("valid.en", 1, lambda line: line * 20),
        ["149 validation pairs, 1 skipped (1", "validation pairs too long, skipped: valid.en:1\n"],
    ),
    "U+2028": (
        add("train.en", 9, "\u2028end"),
        [
            f"{SKIPPED} and of the others 1 with line separators;",
            "training pairs with line separators, kept: train.en:9\n",
        ],
    ),
    "U+0085": (
        add("train.de", 9, "\u0085ende"),
        ["training pairs with line separators, kept: train.de:9\n"],
    ),
    "a single CR": (
        add("train.en", 10, "\rend"),
        ["training pairs with line separators, kept: train.en:10\n"],
    ),
    "no-break space": (
        add("train.en", 11, "\u00a0end"),
        ["training pairs with tabs or foreign blanks, kept: train.en:11\n"],
    ),
    "ideographic space": (
        add("valid.en", 11, "\u3000end"),
        ["validation pairs with tabs or foreign blanks, kept: valid.en:11\n"],
    ),
    "tab": (
        add("train.en", 12, "\tend"),
        ["training pairs with tabs or foreign blanks, kept: train.en:12\n"],
    ),
    "zero-width space": (
        add("train.en", 13, "\u200bend"),
        ["training pairs with invisible characters, kept: train.en:13\n"],
    ),
    "a byte-order mark in the middle": (
        change_line("train.en", 14, lambda line: b"\xef\xbb\xbf" + line),
        ["training pairs with invisible characters, kept: train.en:14\n"],
    ),
    "direction": (
        add("train.en", 15, "\u202eend"),
        ["training pairs with directional marks, kept: train.en:15\n"],
    ),
    "control character": (
        add("train.en", 16, "\x1b[1m"),
        ["training pairs with control characters, kept: train.en:16\n"],
    ),
    "replacement character": (
        add("train.en", 17, "caf\ufffd"),
        ["training pairs with replacement characters, kept: train.en:17\n"],
    ),
    "the source again": (
        lambda folder: (folder / "train.de").write_bytes((folder / "train.en").read_bytes()),
        [
            "200 with the same text on both sides;",
            "training pairs with the same text on both sides, kept: train.en:1, train.en:2, ",
        ],
    ),
    "byte-order marks": (
        both(lambda whole: b"\xef\xbb\xbf" + whole),
        [
            f"{SKIPPED};",
            "train.en:1: the byte-order mark at the beginning of the file is left out\n",
            "train.de:1: the byte-order mark at the beginning of the file is left out\n",
        ],
    ),
}


@pytest.mark.parametrize(("spoil", "said"), COUNTED.values(), ids=COUNTED.keys())
def test_pairs_are_counted_and_named(spoil, said, folder):
    spoil(folder)
    for _ in range(2):  # the second time from the cache
        code, message, (task,) = open_task(data())
        assert (code, message) == (0, "")
        for words in said:
            assert words in task.summary() + "\n"


def test_a_corpus_without_faults_has_no_notes(folder):
    summary = open_task(data())[2][0].summary()
    assert f"{SKIPPED}; 150 validation pairs, 0 skipped (" in summary
    assert summary.count("\n") == 1


@pytest.mark.parametrize(
    "change",
    [
        both(lambda whole: whole.replace(b"\n", b"\r\n")),
        both(lambda whole: b"\xef\xbb\xbf" + whole),
        both(lambda whole: whole.removesuffix(b"\n")),
        packed("train.en", bytes),
        packed(
            "train.de", bytes, lambda whole: gzip.compress(whole[:99]) + gzip.compress(whole[99:])
        ),
    ],
    ids=["CRLF", "byte-order mark", "no end of the last line", "gzip", "gzip in two pieces"],
)
def test_the_same_text_in_other_bytes_gives_the_same_batches(change, folder):
    (task,) = open_task(data())[2]
    change(folder)
    (other,) = open_task(data())[2]
    assert other.identity()["tokenizer"] == task.identity()["tokenizer"]
    shards = BatchShards.of(make_mesh(devices=jax.devices()[:1]))
    for step in range(3):
        ours, theirs = (next(t.batches(step, shards)) for t in (task, other))
        for one, two in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one, two)


def test_trees_are_counted_and_named(folder):
    change_line("more.trees", 4, lambda line: line.replace(b"gene", "ge\u200bne".encode()))(folder)
    content("train.trees", lambda whole: b"\xef\xbb\xbf(S\n" + b"(NN word)" * 99 + b")\n" + whole)(
        folder
    )
    code, _, (task,) = open_task(trees())
    assert code == 0
    summary = task.summary()
    assert "train.trees:1: the byte-order mark at the beginning of the file is left out" in summary
    assert "training pairs too long, skipped: train.trees:1\n" in summary
    assert "training pairs with invisible characters, kept: more.trees:4" in summary


@pytest.mark.parametrize(
    ("config", "place"), [(data(), "train.en:"), (trees(), "train.trees,more.trees: pair ")]
)
def test_pairs_are_named_when_the_files_are_gone(config, place, folder):
    assert open_task(config)[0] == 0
    (task,) = open_task(config)[2]
    for path in folder.iterdir():
        path.unlink()
    numbers = task.example_ids(0)
    assert f"it had {len(numbers)} pairs: {place}{numbers[0]}" in task.describe_batch(0)


def test_lines_of_a_stream_are_named(folder):
    change_line("play.txt", 3, lambda line: line + b"\r")(folder)
    content("play.txt", lambda whole: b"\xef\xbb\xbf" + whole)(folder)
    text = (folder / "play.txt").read_text("utf-8-sig")
    model = dataclasses.replace(MODEL, vocab_size=4 + len(set(text) | {"\r"}))
    config = StreamConfig(file="play.txt", length=8, rows=2)
    task = make_task(Config(model=model, data=config, training=TRAINING), Workdir(folder / "run"))
    assert task.summary().endswith("lines with line separators, kept: play.txt:3")


class Meddled(TextCorpus):
    """Text files that are changed when they are read for the ``reading``-th time."""

    def __init__(self, reading, meddle):
        super().__init__("en", "de")
        self.reading, self.meddle = reading, meddle

    def pairs(self, split):
        self.reading -= 1
        for number, pair in enumerate(super().pairs(split)):
            if self.reading == 0 and number == 100:
                self.meddle(split)
            yield pair


def append(split):
    for language in ("en", "de"):
        with pathlib.Path(f"{split}.{language}").open("a") as file:
            file.write("one more\n")


def exchange(split):
    for language in ("en", "de"):
        pathlib.Path("new").write_text("one\ntwo\n" * 50)
        pathlib.Path("new").rename(f"{split}.{language}")


def truncate(split):
    for language in ("en", "de"):
        os.truncate(f"{split}.{language}", 20_000)


def remove(split):
    pathlib.Path(f"{split}.en").unlink()


CHANGED = r"expected the same sentence pairs each time they are read, but they changed meanwh"
# The splits are read to learn a vocabulary, to tokenize training and validation, and for BLEU.
# What is open stays readable without its name, and is not opened again after readings 2 and 4.
MEDDLED = [
    *((reading, append, 2) for reading in (1, 2, 3, 4)),
    *((reading, exchange, 0 if reading in (2, 4) else 2) for reading in (1, 2, 3, 4)),
    *((reading, truncate, 2) for reading in (1, 4)),
    *((reading, remove, 2) for reading in (1, 3)),
]


@pytest.mark.parametrize(("reading", "meddle", "expected"), MEDDLED)
def test_files_that_change_while_they_are_read(reading, meddle, expected, folder):
    files = {path: path.read_bytes() * 5 for path in folder.glob("*.??")}

    def write():
        for path, whole in files.items():
            path.write_bytes(whole)

    write()
    code, message, _ = open_task(data(), Meddled(reading, meddle))
    assert code == expected
    if code:
        assert re.search(rf"{CHANGED}|as many lines in|en: no such file", message)
    # The files as they were before must not get what has been made of the others.
    write()
    code, message, (task,) = open_task(data())
    assert (code, message) == (0, "")
    assert "1,000 training pairs, 0 skipped" in task.summary()
    assert "750 validation pairs, 0 skipped" in task.summary()


def test_a_file_without_permission(folder):
    """Tests may run as root, who may read everything, but not in a folder of pytest."""
    assert open_task(data())[0] == 0
    with tempfile.TemporaryDirectory() as open_to_all:
        copy = shutil.copytree(folder, pathlib.Path(open_to_all, "corpus"))
        pathlib.Path(open_to_all).chmod(0o755)
        (copy / "train.de").chmod(0)
        config = data(train=f"{copy}/train", valid=f"{copy}/valid")
        user, nobody = os.geteuid(), 65534
        if user == 0:
            os.seteuid(nobody)
        try:
            code, message, _ = open_task(config, workdir=f"{copy}/run")
            assert (code, message) == (
                2,
                f"error: {copy}/train.de: cannot be read: Permission denied\n",
            )
        finally:
            os.seteuid(user)


class Poisoned(Translation):
    """Gives NaN for every batch that begins with the pair of line 12."""

    def __init__(self, config, dataset):
        super().__init__(config, dataset)
        (place,) = np.flatnonzero(dataset.train.numbers == 11)
        source = jnp.asarray(dataset.train[int(place)][0].astype(np.int32))
        loss = self.loss

        def poisoned(params, batch, randomness):
            sums = loss(params, batch, randomness)
            found = jnp.all(batch.src[:, : len(source)] == source, axis=1).any()
            return sums | {"loss": sums["loss"] * jnp.where(found, jnp.nan, 1.0)}

        self.loss = poisoned


@pytest.mark.ci
def test_all_pairs_of_a_skipped_step_are_named(folder, capsys):
    on_lines([3, 4], lambda line: b"")(folder)
    training = dataclasses.replace(TRAINING, steps=60, log_every=20, eval_sentences=0)
    config = Config(model=MODEL, data=data(batching="packing"), training=training)
    dataset = open_dataset(config, Workdir(pathlib.Path("../run")))
    task, tokenizer = Poisoned(config, dataset), dataset.tokenizer
    mesh = make_mesh(devices=jax.devices()[:1])
    fit(task, make_optimizer(config), "../run", training, config=config, mesh=mesh)
    said = capsys.readouterr().err
    lines = (folder.parent / "run" / "metrics.jsonl").read_text().splitlines()
    skipped = [report for report in map(json.loads, lines) if report["kind"] == "skipped"]
    assert skipped
    for report in skipped:
        step, numbers = report["step"], report["examples"]
        assert 12 in numbers
        assert not {3, 4} & set(numbers)
        batch = next(task.batches(step - 1, BatchShards.of(mesh)))
        texts = [
            tokenizer.decode(row[segments == segment].tolist())
            for row, segments in zip(batch.src, batch.src_segments, strict=True)
            for segment in range(1, segments.max() + 1)
        ]
        assert sorted(texts) == sorted(PAIRS[number - 1][0] for number in numbers)
        named = ", ".join(f"train.en:{number}" for number in numbers[:10])
        more = f" and {len(numbers) - 10} more" * (len(numbers) > 10)
        assert (
            f"step {step} skipped: its update was NaN or Inf; it had {len(numbers)} pairs: "
            f"{named}{more}; metrics.jsonl has the numbers of all\n"
        ) in said


@pytest.mark.ci
def test_an_enormous_line_takes_little_memory(folder):
    """Tokenizing 100 MB would take more than 8 GB."""
    change_line("train.en", 5, lambda line: b"x" * 100_000_000)(folder)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    code, message, _ = open_task(data())
    assert code == 2
    assert "train.en:5: expected one sentence a line, of at most 1,000,000 bytes" in message
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB


@pytest.mark.ci
@pytest.mark.parametrize(
    ("builder", "said"),
    [
        ("wmt14_translate/de-en", r"wmt14_translate/de-en is not prepared as .* pip install"),
        ("wmt41_translate/de-en", r"data\.builder: TensorFlow Datasets has no 'wmt41_translate/d"),
    ],
)
def test_tensorflow_datasets_that_are_missing(builder, said, folder):
    code, message, _ = open_task(data(corpus="tfds", builder=builder, directory=str(folder)))
    assert code == 2
    assert re.search(said, message)


@pytest.mark.ci
@pytest.mark.parametrize("name", ["text: NUL", "text: a named pipe", "text: gzip cut short"])
def test_the_command_exits_with_2(name, folder):
    _, spoil, said = REFUSED[name]
    spoil(folder)
    settings = {
        "data.corpus": "text",
        "data.train": folder / "train",
        "data.valid": folder / "valid",
    }
    process = start_training(folder.parent / "run", **settings)
    _, message = process.communicate(timeout=120)
    assert process.returncode == 2
    assert re.search(said, message)
    assert "Traceback" not in message
    assert not (folder.parent / "run").exists()
