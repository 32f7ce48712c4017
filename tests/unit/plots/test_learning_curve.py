import json
import math

import matplotlib
import pytest
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


def train(step, loss=2.0):
    return {
        "kind": "train",
        "step": step,
        "loss": loss,
        "perplexity": math.exp(loss),
        "learning_rate": 1e-6 * step,
        "tokens_per_second": 1e4,
    }


def valid(step, loss=2.0, **values):
    return {"kind": "valid", "step": step, "loss": loss, "perplexity": math.exp(loss), **values}


@pytest.fixture
def draw(tmp_path, pages):
    def draw(*records):
        learning_curve(records, tmp_path / "curve.png")
        return {axes.get_title(loc="left"): axes for axes in pages[-1].axes}

    return draw


def points(axes):
    return {str(line.get_label()): list(map(tuple, line.get_xydata())) for line in axes.lines}


def test_each_panel_shows_its_values(draw):
    panels = draw(
        train(1, 6.0), valid(1, 3.0, bleu=10), train(2, 4.0), valid(2, 2.5, bleu=30), valid(3, 2.75)
    )
    assert list(panels) == [LOSS, PERPLEXITY, BLEU, RATE, SPEED]
    steps = {title for title, axes in panels.items() if axes.get_xlabel() == "step"}
    assert steps == {BLEU, RATE, SPEED}  # the lowest panels of three columns
    assert points(panels[LOSS]) == {
        "training": [(1, 6.0), (2, 4.0)],
        "validation": [(1, 3.0), (2, 2.5), (3, 2.75)],
    }
    assert points(panels[PERPLEXITY])["training"] == [(1, math.exp(6)), (2, math.exp(4))]
    assert points(panels[BLEU]) == {"validation": [(1, 10.0), (2, 30.0)]}
    assert points(panels[RATE]) == {"training": [(1, 1e-6), (2, 2e-6)]}
    # The best validation is written beside its point.
    marks = {title: [(t.get_text(), t.xy) for t in axes.texts] for title, axes in panels.items()}
    assert marks[LOSS] == [("best 2.50", (2, 2.5))]
    assert marks[BLEU] == [("best 30.00", (2, 30.0))]
    # Perplexity is logarithmic only over a decade.
    assert panels[PERPLEXITY].get_yscale() == "log"
    panels = draw(train(1, 2.5), train(2, 2.0), valid(2, exact_match=98.4))
    assert panels[PERPLEXITY].get_yscale() == "linear"
    assert panels[EXACT].get_yticks()[-1] == 100
    assert panels[EXACT].get_ylim()[1] > 100  # Space for the best value.


def test_panels_without_values_are_left_out(draw):
    every = [train(1), valid(2, bleu=1.0, exact_match=2.0)]
    assert list(draw(*every)) == [LOSS, PERPLEXITY, BLEU, EXACT, RATE, SPEED]
    panels = draw(train(1), valid(2, nats_per_character=1.5))
    assert list(panels) == [LOSS, PERPLEXITY, NATS, RATE, SPEED]
    assert panels[LOSS].lines[0].get_marker() == "o"  # A single report can be seen.


def test_values_of_a_diverged_run_are_left_out(draw):
    broken = [train(2) | {"loss": math.nan}, train(3, 9.0) | {"perplexity": math.inf}]
    broken += [train(4, 700.0) | {"loss": -math.inf}, valid(4)]
    again = train(3, 5.0) | {"perplexity": math.inf}  # A step reported again counts once.
    panels = draw(train(1), *broken, again, train(5), valid(6, bleu=math.nan))
    assert points(panels[LOSS])["training"] == [(1, 2.0), (3, 5.0), (5, 2.0)]
    assert [x for x, _ in points(panels[PERPLEXITY])["training"]] == [1, 2, 5]
    assert BLEU not in panels


@pytest.mark.parametrize(
    "records",
    [
        [train(0, 0.0), valid(0, 0.0, bleu=0.0)],
        [train(1, 20.0), valid(2, 0.0, bleu=100.0), train(10**9, 1e-9)],
        [train(-(10**12)), train(2)],
        [train(1) | {"perplexity": 0.0}, train(2) | {"perplexity": -1.0}],
    ],
)
def test_extreme_values_are_drawn(records, draw):
    panels = draw(*records)
    assert len(points(panels[LOSS])["training"]) == sum(r["kind"] == "train" for r in records)


@pytest.mark.parametrize("records", [[], [{"kind": "train", "step": 1, "loss": math.nan}]])
def test_nothing_to_draw_is_refused(records, tmp_path):
    with pytest.raises(UserError, match="expected a run with reports to draw: got none"):
        learning_curve(records, tmp_path / "curve.png")
    assert list(tmp_path.iterdir()) == []


def test_user_settings_have_no_effect_and_are_unchanged(tmp_path):
    records = [train(1), train(2)]
    learning_curve(records, tmp_path / "plain.svg")
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "figure.dpi": 33}):
        before = dict(matplotlib.rcParams)
        learning_curve(records, tmp_path / "fancy.svg")
        assert dict(matplotlib.rcParams) == before
    assert (tmp_path / "plain.svg").read_bytes() == (tmp_path / "fancy.svg").read_bytes()
    learning_curve(records, tmp_path / "curve.png")
    assert imread(tmp_path / "curve.png").std() > 0


def test_metrics_are_read_back_without_an_incomplete_last_line(tmp_path):
    records = [train(1), valid(1, math.inf), train(2)]
    path = tmp_path / "metrics.jsonl"
    whole = "".join(json.dumps(record) + "\n" for record in records).encode()
    last = json.dumps(train(3)).encode()
    for end in (*(last[:length] for length in range(len(last))), last[:9] + b"\xff\x00"):
        path.write_bytes(whole + end)
        assert read_metrics(path) == records


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b"nonsense", "'nonsens"),
        (b"[" * 100_000, ""),
        (b'{"step": ' + b"[" * 100_000, ""),
        (b'{"kind": "train", "step": ' + b"9" * 5000 + b', "loss": 1}', ""),
        (b"\xff\xfe", ""),
        (b"\0" * 1000, ""),
    ],
)
def test_damage_before_the_last_line_is_named(line, found, tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"kind": "train"}\n' + line + b'\n{"kind": "train"}\n')
    with pytest.raises(UserError, match=rf"metrics\.jsonl:2: expected a JSON object, got {found}"):
        read_metrics(path)


def test_missing_and_sparse_metrics_are_refused(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with pytest.raises(UserError, match=r"metrics\.jsonl: no such file; expected the metrics of"):
        read_metrics(path)
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match="found a sparse one"):
        read_metrics(path)


def test_hostile_values_are_not_drawn(draw):
    good = {"kind": "train", "step": 1, "loss": 2.0}
    steps, losses = [10**300, True], [10**300, "1", [[]]]
    values = [{"step": step} for step in steps] + [{"loss": loss} for loss in losses]
    hostile = [{**good, "step": 2, **value} for value in [*values, {"kind": []}, {"kind": {}}]]
    assert points(draw(good, *hostile)[LOSS]) == {"training": [(1, 2.0)]}
