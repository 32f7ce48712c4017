"""Trains a row of Table 3 for a few steps."""

import dataclasses
import json
import pathlib

import pytest

from jaxformer.data.numerals import spell_english, spell_german
from jaxformer.errors import UserError
from jaxformer.paper.table3 import main
from jaxformer.paper.table3_report import load_results

from ..runs import reports, write_pairs

STEPS = 4


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    # A single validation pair and training pairs of one length have few shapes to compile.
    for part, numbers in (("train", [*range(321, 400)] * 5), ("valid", [400])):
        pairs = [(spell_english(n), spell_german(n)) for n in numbers]
        write_pairs(folder / part, pairs)
    return folder


def arguments(corpus, workdir, *more):
    return [
        "--scale=smoke",
        f"--steps={STEPS}",
        f"--data={corpus}",
        f"--workdir={workdir}",
        "--rows=C1",
        *more,
    ]


@pytest.mark.ci
def test_a_finished_row_is_not_trained_again(corpus, tmp_path, capsys):
    row = tmp_path / "rows" / "C1-0"
    main(arguments(corpus, tmp_path))

    (found,) = load_results(tmp_path / "rows")
    assert dataclasses.asdict(found) == json.loads((row / "result.json").read_text())
    assert found.row == "C1"
    assert found.steps == STEPS
    assert found.seed == 0

    report = json.loads((row / "report.json").read_text())
    # After four steps there may be no line of four words, and so no BLEU: the table has 0 then.
    assert (report["sacrebleu"]["score"] or 0) == found.bleu
    assert (report["compound_split_bleu"]["score"] or 0) == found.compound_split_bleu
    assert found.perplexity == reports(row)[-1]["perplexity"]
    assert found.perplexity > 1
    rates = [report["seconds_per_step"] for report in reports(row, "train")]
    assert found.training_seconds == pytest.approx(2 * sum(rates))

    # Without data only the table can be written.
    table = tmp_path / "table3.md"
    table.unlink()
    main(arguments(pathlib.Path("nowhere"), tmp_path, "--report"))
    capsys.readouterr()
    assert f"| C1 | N 1 | {STEPS} | {found.perplexity:.2f} |" in table.read_text()

    # With other or missing data, the row cannot be verified.
    with pytest.raises(UserError, match="no folder nowhere"):
        main(arguments(pathlib.Path("nowhere"), tmp_path))
    main(arguments(corpus, tmp_path))
    message = "[1/1] C1: N 1; seed 0: finished; delete its folder to train it again"
    assert message in capsys.readouterr().err
