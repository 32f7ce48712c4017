"""Rows of Table 3 that are trained for real, if for a few steps."""

import json

import pytest

from jaxformer.data.numerals import english, german
from jaxformer.errors import UserError
from jaxformer.paper.table3 import main


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    # A single pair to validate on: one shape, so one program of each kind to compile.
    for part, numbers in (("train", range(400)), ("valid", [400])):
        for language, spell in (("en", english), ("de", german)):
            text = "".join(f"{spell(n)}\n" for n in numbers)
            (folder / f"{part}.{language}").write_text(text, encoding="utf-8")
    return folder


def arguments(corpus, workdir, *more):
    return ["--scale=smoke", f"--data={corpus}", f"--workdir={workdir}", "--rows=C1", *more]


@pytest.mark.slow
def test_a_finished_row_is_not_trained_again(corpus, tmp_path, capsys):
    main(arguments(corpus, tmp_path))
    row = tmp_path / "rows" / "C1-0"
    found = json.loads((row / "result.json").read_text())
    assert (found["row"], found["steps"], found["perplexity"] > 1) == ("C1", 4, True)
    assert len((row / "valid.de").read_text().split("\n")) == 1 + 1
    records = [json.loads(line) for line in (row / "metrics.jsonl").read_text().split("\n")[:-1]]
    assert found["perplexity"] == records[-1]["perplexity"]
    rates = [r["seconds_per_step"] for r in records if r["kind"] == "train"]
    assert found["training_seconds"] == pytest.approx(2 * sum(rates))
    table = (tmp_path / "table3.md").read_text()
    assert "| C1 | N 1 | 4 |" in table

    # Without data or checkpoints nothing but the table can be made.
    for path in row.iterdir():
        if path.name != "result.json":
            path.rename(tmp_path / path.name)
    main(arguments(tmp_path / "nowhere", tmp_path))
    assert "finished" in capsys.readouterr().err
    assert (tmp_path / "table3.md").read_text() == table
    assert [path.name for path in row.iterdir()] == ["result.json"]
    with pytest.raises(UserError, match="--steps 4, but smoke and 5 were given"):
        main(arguments(corpus, tmp_path, "--steps=5"))


def test_mistakes(corpus, tmp_path):
    with pytest.raises(UserError, match="expected finished rows"):
        main(arguments(corpus, tmp_path, "--report"))
    with pytest.raises(UserError, match="unknown row 'A9' of Table 3"):
        main([*arguments(corpus, tmp_path), "--rows=C1,A9"])  # before C1 is trained
    assert list(tmp_path.iterdir()) == []
