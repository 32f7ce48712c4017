"""Parquet and JSONL files of sentence pairs give the batches that text files with them give."""

import dataclasses
import gzip
import itertools
import json
import lzma
import pathlib
import runpy
import sys

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from jaxformer.config import Config, DataConfig, ModelConfig, TrainingConfig
from jaxformer.data.corpus import open_corpus
from jaxformer.data.findings import EMPTY
from jaxformer.data.numerals import NumeralsCorpus
from jaxformer.errors import UserError
from jaxformer.runs.workdir import Workdir
from jaxformer.tasks.dataset import open_dataset

from ..runs import write_pairs

PROJECT = pathlib.Path(__file__).parents[2]
MODEL = ModelConfig(vocab_size=300, d_model=8, d_ff=16, num_heads=2, num_layers=1, max_length=64)
PAIRS = [*NumeralsCorpus().pairs("held_out")][:300]
PAIRS[7:9] = [("", "leer"), ("Zeile\u2028 \u00a0“ß”", 'Tab \\ "Zitat" 😀')]


def rows(pairs, nested=True):
    """Returns rows as on the Hugging Face Hub, with a column and a language of no interest."""
    flat = [{"de": de, "en": en, "fr": "autre"} for en, de in pairs]
    if not nested:
        return flat
    return [{"id": number, "translation": row} for number, row in enumerate(flat)]


def write_parquet(path, pairs, nested=True, **settings):
    table = pyarrow.Table.from_pylist(rows(pairs, nested))
    pyarrow.parquet.write_table(table, path, **settings)


def write_jsonl(path, pairs, nested=True, ascii_only=False):
    lines = [json.dumps(row, ensure_ascii=ascii_only) for row in rows(pairs, nested)]
    content = "".join(f"{line}\n" for line in lines).encode()
    if path.suffix == ".gz":
        content = gzip.compress(content)
    path.write_bytes(content)


@pytest.fixture
def folder(tmp_path):
    """Returns a folder with the same pairs in every form."""
    for split, pairs in (("train", PAIRS), ("valid", PAIRS[:50])):
        write_pairs(tmp_path / split, pairs)

        shards = np.array_split(np.arange(len(pairs)), 3)
        for number, shard in enumerate(shards):
            part = [pairs[i] for i in shard]
            name = f"{split}-{number:05}-of-00003.parquet"
            write_parquet(tmp_path / name, part)
            write_jsonl(tmp_path / f"{split}-{number}.jsonl", part)

        write_parquet(
            tmp_path / f"flat-{split}.parquet",
            pairs,
            nested=False,
            row_group_size=7,
        )
        write_jsonl(
            tmp_path / f"flat-{split}.jsonl.gz",
            pairs,
            nested=False,
            ascii_only=True,
        )

        lines = "".join(f"{source}\t{target}\r\n" for source, target in pairs)
        (tmp_path / f"{split}.tsv.xz").write_bytes(lzma.compress(lines.encode()))
    return tmp_path


FORMS = {
    "shards of Parquet": ("parquet", "{}-*.parquet"),
    "flat Parquet": ("parquet", "flat-{}.parquet"),
    "shards of JSONL": ("jsonl", "{0}-0.jsonl,{0}-1.jsonl,{0}-2.jsonl"),
    "flat, packed and escaped JSONL": ("jsonl", "flat-{}.jsonl.gz"),
    "TSV": ("tsv", "{}.tsv.*"),
}


def data(folder, corpus="text", form="{}", **changed):
    def paths(split):
        names = form.format(split).split(",")
        return ",".join(f"{folder}/{name}" for name in names)

    return DataConfig(
        corpus=corpus,
        train=paths("train"),
        valid=paths("valid"),
        tokens_per_batch=256,
        max_length=64,
        **changed,
    )


def open_data(config, folder):
    """Returns what a new run reads before its first step."""
    training = TrainingConfig(steps=3, eval_sentences=2)
    experiment = Config(model=MODEL, data=config, training=training)
    return open_dataset(experiment, Workdir(folder / "run"))


@pytest.mark.parametrize(
    ("form", "batching"),
    [
        ("shards of Parquet", "buckets"),
        ("flat Parquet", "packing"),
        ("shards of JSONL", "buckets"),
        ("flat, packed and escaped JSONL", "packing"),
        ("TSV", "buckets"),
    ],
)
def test_same_pairs_and_same_plan_as_text_and_places_are_rows(folder, form, batching):
    config = data(folder, *FORMS[form], batching=batching)
    assert list(open_corpus(config).pairs(config.train)) == PAIRS

    text = open_data(data(folder, batching=batching), folder)
    records = open_data(config, folder)
    assert_same_data(records, text)

    # The empty pair keeps its place, so that later places are right.
    (left_out,) = [number for number, _ in records.train.findings[EMPTY].first]
    in_shards = "shards" in form
    rows_per_file = 100 if in_shards else 300
    files = set()
    for number in (left_out, 99, 100, 299):
        place = records.corpus.place(config.train, number, 1)
        file, _, row = place.rpartition(":")
        assert int(row) == number % rows_per_file + 1
        assert pathlib.Path(file).is_file()
        files.add(file)
    assert len(files) == (3 if in_shards else 1)

    after_the_last = records.corpus.place(config.train, 300, 0)
    assert after_the_last.endswith(": pair 301")


def assert_same_data(records, text):
    assert records.tokenizer.serialized == text.tokenizer.serialized
    assert records.valid_text == text.valid_text

    epoch = text.plan.batches_per_epoch
    assert epoch > 4
    assert records.plan.batches_per_epoch == epoch
    for number in range(2 * epoch):
        assert records.plan.rows(number) == text.plan.rows(number)

    # All but the pair with an empty side.
    assert len(text.train) == len(PAIRS) - 1
    assert len(records.train) == len(text.train)
    for number in range(len(text.train)):
        sides = zip(records.train[number], text.train[number], strict=True)
        for found, expected in sides:
            np.testing.assert_array_equal(found, expected)


def test_fingerprints_are_of_content_and_not_of_places(folder):
    """A run resumes where its files have other names: ``identity.json`` has fingerprints."""
    config = data(folder, *FORMS["shards of Parquet"])
    before = open_corpus(config).fingerprint(config.train)

    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    for path in folder.glob("train-*.parquet"):
        path.rename(elsewhere / f"renamed-{path.name}")
    moved = str(elsewhere / "*")
    assert open_corpus(config).fingerprint(moved) == before

    write_parquet(elsewhere / "renamed-train-00001-of-00003.parquet", PAIRS[:5])
    assert open_corpus(config).fingerprint(moved) != before


def test_another_format_is_refused_even_if_the_tokens_are_cached(folder):
    forms = ("flat Parquet", "flat, packed and escaped JSONL", "TSV")
    configs = [data(folder, *FORMS[form]) for form in forms]
    for cached, other in itertools.permutations(configs, 2):
        open_data(cached, folder)
        mislabeled = dataclasses.replace(other, train=cached.train)
        with pytest.raises(UserError, match=r"expected a whole Parquet|got Parquet|a JSON|one tab"):
            open_data(mislabeled, folder)


def write_line(number, line):
    """Returns a function that writes a JSONL file with ``line`` after ``number`` - 1 fine lines."""
    fine = b'{"en": "Yes.", "de": "Ja."}\n'
    content = fine * (number - 1) + line + b"\n" + fine
    return lambda path: path.write_bytes(content)


def write_row(row, nested=False):
    """Returns a function that writes a Parquet file whose sixth row is ``row``."""
    six = [*rows(PAIRS[:5], nested), row]
    table = pyarrow.Table.from_pylist(six)
    return lambda path: pyarrow.parquet.write_table(table, path)


def write_damaged(path):
    write_parquet(path, PAIRS, nested=False)
    content = path.read_bytes()
    path.write_bytes(content[:100] + bytes(900) + content[1000:])


FAULTS = [
    ("jsonl", write_line(5, b'{"en": "a'), "jsonl:5: expected a JSON object"),
    ("jsonl", write_line(2, b"[" * 10**5), "jsonl:2: expected a JSON object"),
    ("jsonl", write_line(9, b'["Yes.", "Ja."]'), r"jsonl:9: expected a text for 'en', as in {"),
    ("jsonl", write_line(1, b'{"translation": {"en": "Yes."}}'), "jsonl:1: expected a text for 'd"),
    ("jsonl", write_line(4, rb'{"en": "a\u0000", "de": "b"}'), "jsonl:4: expected text, got a NUL"),
    ("jsonl", write_line(4, rb'{"en": "a", "de": "\ud83d"}'), "jsonl:4: .* half of a surrogate"),
    ("tsv", lambda path: path.write_text("a\tb\nc\td\te\n"), "tsv:2: .* got 2 tabs; .*cut -f 1,2"),
    ("parquet", write_row({"en": "one"}), "parquet:6: expected a text for 'de'"),
    ("parquet", write_row({"translation": None}, nested=True), "parquet:6: expected a text for"),
    ("parquet", write_line(3, b"PAR1"), "parquet: expected a whole Parquet file: "),
    ("parquet", write_damaged, "parquet: expected a whole Parquet file: "),
    ("parquet", lambda path: None, "parquet: no such file, nor one with"),
]


@pytest.mark.parametrize(("kind", "write", "message"), FAULTS)
def test_faults_are_refused_with_file_and_row(kind, write, message, tmp_path):
    path = tmp_path / f"file.{kind}"
    write(path)
    with pytest.raises(UserError, match=message):
        list(open_corpus(DataConfig(corpus=kind)).pairs(str(path)))


def test_missing_shards_are_refused(tmp_path):
    names = [tmp_path / f"train-{number:05}-of-00003.parquet" for number in range(3)]
    for number, path in enumerate(names):
        write_parquet(path, PAIRS[number : number + 1])
    names[1].rename(tmp_path / "train-00000-of-00003 (1).parquet")  # Another is there twice.

    corpus = open_corpus(DataConfig(corpus="parquet"))
    split = str(tmp_path / "train-*.parquet")
    series = (
        r"expected all 3 files of the series .*-of-00003, each once: found 2 of them in 3 files"
    )
    with pytest.raises(UserError, match=series):
        list(corpus.pairs(split))


def test_without_pyarrow(folder, monkeypatch):
    parquet = data(folder, *FORMS["flat Parquet"])
    jsonl = data(folder, *FORMS["shards of JSONL"])
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)

    with pytest.raises(UserError, match="install it: pip install pyarrow"):
        open_data(parquet, folder)
    open_data(jsonl, folder)


@pytest.mark.parametrize(
    ("name", "target", "corpus"),
    [
        ("base", "de", "wmt14"),
        ("big_fr", "fr", "wmt14-fr"),
    ],
)
def test_shipped_configs_read_wmt14(name, target, corpus, tmp_path, monkeypatch):
    """The files have the names of the Hugging Face Hub."""
    monkeypatch.setenv("JAXFORMER_DATA", str(tmp_path))
    module = runpy.run_path(str(PROJECT / "configs" / f"{name}.py"))
    config = Config.from_dict(module["get_config"]().to_dict())
    with pytest.raises(UserError, match=rf"jaxformer data {corpus}$"):
        list(open_corpus(config.data).pairs(config.data.train))

    folder = tmp_path / f"wmt14-{target}-en"
    folder.mkdir()
    for split, count in (("train", 3), ("validation", 1), ("test", 1)):
        for shard in range(count):
            row = {"translation": {target: target, "en": f"{split} {shard}"}}
            table = pyarrow.Table.from_pylist([row])
            path = folder / f"{split}-{shard:05}-of-{count:05}.parquet"
            pyarrow.parquet.write_table(table, path)

    files = open_corpus(config.data)
    train = [("train 0", target), ("train 1", target), ("train 2", target)]
    assert list(files.pairs(config.data.train)) == train
    assert list(files.pairs(config.data.valid)) == [("validation 0", target)]
