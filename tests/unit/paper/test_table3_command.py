"""Checks before training, and reports of rows that cannot be finished.

Training and decoding of a row are replaced by a function that records the row.
"""

import shutil

import jax
import pytest

from jaxformer.data.numerals import spell_english, spell_german
from jaxformer.errors import UserError
from jaxformer.paper import table3
from jaxformer.paper.table3_report import Result
from jaxformer.tasks.dataset import open_dataset

STEPS = 4


def corpus(folder, numbers):
    folder.mkdir()
    for language, spell in (("en", spell_english), ("de", spell_german)):
        text = "".join(f"{spell(number)}\n" for number in numbers)
        for part in ("train", "valid"):
            (folder / f"{part}.{language}").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return corpus(tmp_path_factory.mktemp("table3") / "data", range(400))


@pytest.fixture
def trained(monkeypatch):
    """The rows that were trained, in order; seed 9 diverges."""
    rows = []

    def run_row(config, folder, row, scale):
        rows.append(row)
        if config.training.seed == 9:
            raise FloatingPointError("gradients were NaN")
        result = Result(
            row=row,
            scale=scale,
            steps=STEPS,
            seed=config.training.seed,
            corpus="numbers",
            perplexity=10.0,
            bleu=20.0,
            bleu_signature="nrefs:1",
            compound_split_bleu=20.0,
            parameters=1,
            machine="an abacus",
            training_seconds=1.0,
            decoding_seconds=1.0,
            data=open_dataset(config, folder).identity,
        )
        result.save(folder.path / "result.json")

    monkeypatch.setattr(table3, "run_row", run_row)
    monkeypatch.setattr(jax, "clear_caches", lambda: None)
    return rows


def run(workdir, data, rows, *more):
    arguments = [
        "--scale=smoke",
        f"--steps={STEPS}",
        f"--data={data}",
        f"--workdir={workdir}",
        f"--rows={rows}",
    ]
    table3.main([*arguments, *more])


def test_each_row_is_run_once(tmp_path, data, trained, capsys):
    run(tmp_path, data, "C1")
    # The contents count, not the name of the folder, which another machine may have chosen.
    (tmp_path / "rows" / "C1-0").rename(tmp_path / "rows" / "another")

    run(tmp_path, data, "C1,A1,A1,big")

    assert trained == ["C1", "A1", "big"]
    lines = capsys.readouterr().err.split("\n")
    said = [line for line in lines if line.startswith("[1/3] C1")]
    assert said == ["[1/3] C1: N 1; seed 0: finished; delete its folder to train it again"]


def test_rows_of_other_data_or_steps_are_refused_before_training(tmp_path, data, trained):
    run(tmp_path, data, "C1")

    other = corpus(tmp_path / "other", range(1, 401))
    with pytest.raises(UserError, match=r"rows: holds rows of other data than \w\w, seed 0"):
        run(tmp_path, other, "A1,C1")
    with pytest.raises(UserError, match="holds rows of --scale smoke --steps 4, but smoke and 5"):
        run(tmp_path, data, "A1", "--steps=5")
    assert trained == ["C1"]

    # The same text elsewhere is the same data.
    copy = corpus(tmp_path / "copy", range(400))
    run(tmp_path, copy, "A1,C1")
    assert trained == ["C1", "A1"]


def test_pairs_that_cannot_be_scored_are_refused_before_training(tmp_path, data, trained):
    """A model of the scale "smoke" has a maximum of 128 tokens, end-of-sentence included."""
    other = tmp_path / "other"
    shutil.copytree(data, other)
    message = r"valid: expected sentences of 1 to 127 tokens .* 1 pairs .* line 401;"

    for english, german in (("~" * 127, "eins"), ("one", "")):
        for name, added in (("valid.en", english), ("valid.de", german)):
            text = (data / name).read_text("utf-8")
            (other / name).write_text(f"{text}{added}\n", "utf-8")
        with pytest.raises(UserError, match=message):
            run(tmp_path, other, "C1")

    assert trained == []


def test_divergence_is_reported_and_does_not_prevent_the_table(tmp_path, data, trained):
    table = tmp_path / "table3.md"

    with pytest.raises(FloatingPointError, match="C1, seed 9: gradients were NaN; A1, seed 9: gra"):
        run(tmp_path, data, "C1,A1", "--seeds=9")
    assert trained == ["C1", "A1"]
    assert not table.exists()

    with pytest.raises(FloatingPointError, match=r"^C1, seed 9: gradients were NaN$"):
        run(tmp_path, data, "C1", "--seeds=0,9")
    assert "| C1 | N 1 | 4 | 10.00 |" in table.read_text()
