import json
import math
import pathlib

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from jaxformer.errors import UserError
from jaxformer.plots.learning_curve import learning_curve, read_metrics

LOSS, PERPLEXITY, NATS, BLEU, EXACT, RATE, SPEED = (
    "Loss",
    "Perplexity",
    "Nats per character on the validation set",
    "sacreBLEU on the validation set",
    "Exact matches on the validation set (%)",
    "Learning rate (10⁻³)",
    "Tokens per second",
)


def train(step: int, loss: float = 2.0) -> dict[str, object]:
    return {
        "kind": "train",
        "step": step,
        "loss": loss,
        "perplexity": math.exp(loss),
        "learning_rate": 1e-6 * step,
        "tokens_per_second": 1e4,
    }


def valid(step: int, loss: float = 2.0, **values: float) -> dict[str, object]:
    return {"kind": "valid", "step": step, "loss": loss, "perplexity": math.exp(loss), **values}


def draw(records, path: pathlib.Path, pages: list[Figure]) -> dict[str, matplotlib.axes.Axes]:
    learning_curve(records, path / "curve.png")
    assert imread(path / "curve.png").std() > 0
    return {axes.get_title(loc="left"): axes for axes in pages[-1].axes}


def points(axes: matplotlib.axes.Axes) -> dict[str, list[tuple[float, float]]]:
    return {str(line.get_label()): list(map(tuple, line.get_xydata())) for line in axes.lines}


def test_each_panel_shows_its_values(tmp_path: pathlib.Path, pages: list[Figure]):
    records = [train(100, 6.0), valid(100, 5.0, bleu=3.5), train(200, 4.0), valid(200, 3.0, bleu=9)]
    panels = draw(records, tmp_path, pages)
    assert list(panels) == [LOSS, PERPLEXITY, BLEU, RATE, SPEED]
    steps = {title for title, axes in panels.items() if axes.get_xlabel() == "step"}
    assert steps == {BLEU, RATE, SPEED}  # the lowest panels of three columns
    assert points(panels[LOSS]) == {
        "training": [(100, 6.0), (200, 4.0)],
        "validation": [(100, 5.0), (200, 3.0)],
    }
    assert points(panels[PERPLEXITY])["validation"] == [(100, math.exp(5)), (200, math.exp(3))]
    assert points(panels[BLEU]) == {"validation": [(100, 3.5), (200, 9.0)]}
    assert points(panels[RATE]) == {"training": [(100, 1e-6 * 100), (200, 1e-6 * 200)]}


def test_the_best_validation_is_written_beside_its_point(
    tmp_path: pathlib.Path, pages: list[Figure]
):
    records = [valid(1, 3.0, bleu=10), valid(2, 2.5, bleu=30), valid(3, 2.75, bleu=20)]
    panels = draw(records, tmp_path, pages)
    marks = {title: [(t.get_text(), t.xy) for t in axes.texts] for title, axes in panels.items()}
    assert marks[LOSS] == [("best 2.50", (2, 2.5))]
    assert marks[BLEU] == [("best 30.00", (2, 30.0))]


def test_percentages_end_at_100(tmp_path: pathlib.Path, pages: list[Figure]):
    panels = draw([valid(1, exact_match=50.0), valid(2, exact_match=98.4)], tmp_path, pages)
    assert panels[EXACT].get_yticks()[-1] == 100
    assert panels[EXACT].get_ylim()[1] > 100  # Space for the best value.


def test_perplexity_is_logarithmic_only_over_a_decade(tmp_path: pathlib.Path, pages: list[Figure]):
    wide = draw([train(1, 8.0), train(2, 2.0)], tmp_path, pages)[PERPLEXITY]
    narrow = draw([train(1, 2.5), train(2, 2.0)], tmp_path, pages)[PERPLEXITY]
    assert (wide.get_yscale(), narrow.get_yscale()) == ("log", "linear")


def test_panels_without_values_are_left_out(tmp_path: pathlib.Path, pages: list[Figure]):
    assert list(draw([train(1), valid(2)], tmp_path, pages)) == [LOSS, PERPLEXITY, RATE, SPEED]
    every = [train(1), valid(2, bleu=1.0, exact_match=2.0)]
    assert list(draw(every, tmp_path, pages)) == [LOSS, PERPLEXITY, BLEU, EXACT, RATE, SPEED]
    assert list(draw([valid(2, bleu=1.0)], tmp_path, pages)) == [LOSS, PERPLEXITY, BLEU]
    assert list(draw([valid(2, nats_per_character=1.5)], tmp_path, pages))[2] == NATS


def test_a_single_report_can_be_seen(tmp_path: pathlib.Path, pages: list[Figure]):
    panels = draw([train(100)], tmp_path, pages)
    assert panels[LOSS].lines[0].get_marker() == "o"


def test_values_of_a_diverged_run_are_left_out(tmp_path: pathlib.Path, pages: list[Figure]):
    broken = [train(2) | {"loss": math.nan}, train(3) | {"perplexity": math.inf}]
    broken += [train(4, 700.0) | {"loss": -math.inf}, valid(4)]
    panels = draw([train(1), *broken, train(5), valid(6, bleu=math.nan)], tmp_path, pages)
    assert [x for x, _ in points(panels[LOSS])["training"]] == [1, 3, 5]
    assert [x for x, _ in points(panels[PERPLEXITY])["training"]] == [1, 2, 5]
    assert BLEU not in panels


@pytest.mark.parametrize(
    "records",
    [
        [train(0, 0.0), valid(0, 0.0, bleu=0.0)],
        [train(1, 20.0), valid(2, 0.0, bleu=100.0), train(10**9, 1e-9)],
        [train(1) | {"perplexity": 0.0}, train(2) | {"perplexity": -1.0}],
    ],
)
def test_extreme_values_are_drawn(records, tmp_path: pathlib.Path, pages: list[Figure]):
    panels = draw(records, tmp_path, pages)
    assert len(points(panels[LOSS])["training"]) == sum(r["kind"] == "train" for r in records)


def test_a_step_reported_again_counts_once(tmp_path: pathlib.Path, pages: list[Figure]):
    panels = draw([train(1, 3.0), train(2, 9.0), train(3, 9.0), train(2, 2.0)], tmp_path, pages)
    assert points(panels[LOSS])["training"] == [(1, 3.0), (2, 2.0), (3, 9.0)]


@pytest.mark.parametrize("records", [[], [{"kind": "train", "step": 1, "loss": math.nan}]])
def test_nothing_to_draw_is_refused(records, tmp_path: pathlib.Path):
    with pytest.raises(UserError, match="expected a run with reports to draw: got none"):
        learning_curve(records, tmp_path / "curve.png")
    assert list(tmp_path.iterdir()) == []


def test_user_settings_have_no_effect_and_are_unchanged(tmp_path: pathlib.Path):
    records = [train(1), train(2), valid(2, bleu=3.0)]
    learning_curve(records, tmp_path / "plain.png")
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "figure.dpi": 33}):
        before = dict(matplotlib.rcParams)
        learning_curve(records, tmp_path / "fancy.png")
        assert dict(matplotlib.rcParams) == before
    np.testing.assert_array_equal(imread(tmp_path / "plain.png"), imread(tmp_path / "fancy.png"))


def test_metrics_are_read_back(tmp_path: pathlib.Path):
    records = [train(1), valid(1, math.inf), train(2)]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    assert read_metrics(path) == records


def test_every_incomplete_last_line_is_ignored(tmp_path: pathlib.Path):
    path = tmp_path / "metrics.jsonl"
    whole, last = json.dumps(train(1)) + "\n", json.dumps(train(2)).encode()
    for length in range(len(last)):
        path.write_bytes(whole.encode() + last[:length])
        assert read_metrics(path) == [train(1)]
    path.write_bytes(whole.encode() + last[:9] + b"\xff\x00")
    assert read_metrics(path) == [train(1)]


def test_damage_before_the_last_line_is_reported(tmp_path: pathlib.Path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "train"}\nnonsense\n{"kind": "train"}\n', encoding="utf-8")
    with pytest.raises(UserError, match=r"metrics\.jsonl:2: expected a JSON object, got 'nonsens"):
        read_metrics(path)


def test_missing_metrics_are_reported(tmp_path: pathlib.Path):
    with pytest.raises(UserError, match=r"metrics\.jsonl: no such file; expected the metrics of"):
        read_metrics(tmp_path / "metrics.jsonl")


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 100_000,
        b'{"step": ' + b"[" * 100_000,
        b'{"kind": "train", "step": ' + b"9" * 5000 + b', "loss": 1}',
        b"\xff\xfe",
        b"\0" * 1000,
    ],
)
def test_hostile_line_is_named(line, tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(line + b"\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl:1: expected a JSON object, got"):
        read_metrics(path)


@pytest.mark.parametrize(
    "values",
    [
        {"step": 10**300},
        {"step": -(10**12)},
        {"step": True},
        {"loss": 10**300},
        {"loss": "1"},
        {"loss": [[]]},
        {"kind": []},
        {"kind": {}},
    ],
)
def test_hostile_values_are_not_drawn(values, tmp_path):
    good = {"kind": "train", "step": 1, "loss": 2.0}
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps(good) + "\n" + json.dumps({**good, "step": 2, **values}) + "\n")
    learning_curve(read_metrics(path), tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 1000


def test_sparse_metrics_are_refused(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match="found a sparse one"):
        read_metrics(path)
