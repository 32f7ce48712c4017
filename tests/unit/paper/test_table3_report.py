"""The table's text and plot, from artificial results."""

import pytest

from jaxformer.errors import UserError
from jaxformer.paper.table3_report import Result, draw, load_results, report

from .test_commands import cells


def result(row="base", **changes):
    values = {
        "scale": "small",
        "steps": 3000,
        "seed": 0,
        "corpus": "a corpus",
        "perplexity": 10.0,
        "bleu": 20.0,
        "bleu_signature": "nrefs:1",
        "compound_split_bleu": 20.5,
        "parameters": 1_234_567,
        "machine": "an abacus",
        "training_seconds": 90.0,
        "decoding_seconds": 6.0,
        "data": {"train": "abc"},
    }
    return Result(row=row, **(values | changes))


def save(folder, *results):
    for r in results:
        r.save(folder / f"{r.row}-{r.seed}" / "result.json")


def test_a_row_is_printed_beside_the_papers():
    text = report([result(), result("A1", perplexity=12.345, bleu=18.5)])

    assert cells(text, "A1") == [
        "A1",
        "h 1, d_k 128, d_v 128",
        "3,000",
        "12.35",
        "5.29",
        "18.50",
        "20.50",
        "24.9",
        "1,234,567",
        "",
        "1",
        "1.5 + 0.1",
    ]
    assert cells(text, "base")[-3] == "65"
    claim = ["one head is worse than eight", "A1 - base", "+2.35", "+0.37", "-1.50", "-0.90"]
    assert cells(text, claim[0]) == claim


def test_seeds_are_a_mean_and_a_sample_standard_deviation():
    same = [
        result(seed=1, perplexity=9, bleu=21),
        result(seed=2, perplexity=10, bleu=20),
        result(seed=3, perplexity=11, bleu=19),
    ]

    row = cells(report([*same, result("big")]), "base")

    assert row[3] == "10.00 ± 1.00"
    assert row[5] == "20.00 ± 1.00"
    assert row[-2] == "3"


def test_big_takes_three_times_the_steps():
    assert cells(report([result("big")]), "big")[2] == "9,000"


@pytest.mark.parametrize(
    "change", [{"scale": "paper"}, {"steps": 4000}, {"data": {"train": "other"}}]
)
def test_rows_of_different_experiments_are_refused(tmp_path, change):
    save(tmp_path, result(), result("A1", **change))
    (name,) = change
    with pytest.raises(UserError, match=f"base-0/result.json: has another {name}"):
        load_results(tmp_path)


def test_damaged_rows_are_refused(tmp_path):
    assert load_results(tmp_path) == []

    path = tmp_path / "base-0" / "result.json"
    result().save(path)
    path.write_text('{"row": "base"}')
    with pytest.raises(UserError, match="expected a finished row of Table 3; delete it"):
        load_results(tmp_path)


def test_plot_shows_differences_to_base(tmp_path, pages):
    results = [
        result(),
        result("A1", perplexity=10.1, bleu=18),
        result("A1", seed=1, bleu=19),
    ]

    draw(results, tmp_path / "table3.png")

    left, right = pages[-1].axes
    assert [label.get_text() for label in left.get_yticklabels()] == ["A1: h 1, d_k 128, d_v 128"]
    # The mean of 18 and 19 is 1.5 below 20.
    points = [line for line in right.lines[1:] if len(line.get_xdata()) == 1]
    ours, paper = points
    assert ours.get_xdata()[0] == pytest.approx(-1.5)
    assert paper.get_xdata()[0] == pytest.approx(24.9 - 25.8)
