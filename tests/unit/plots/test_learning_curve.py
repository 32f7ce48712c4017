"""Learning curves: panels, points and labels, and the file of metrics that they are read from."""

import json
import math

import matplotlib
import pytest

from jaxformer.errors import UserError
from jaxformer.plots.learning_curve import learning_curve, read_metrics

LOSS = "Loss"
PERPLEXITY = "Perplexity"
NATS = "Nats per character"
BLEU = "sacreBLEU"
EXACT = "Exact matches (%)"
RATE = "Learning rate (10⁻³)"
SPEED = "Tokens per second"


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
    return {
        "kind": "valid",
        "step": step,
        "loss": loss,
        "perplexity": math.exp(loss),
        **values,
    }


@pytest.fixture
def draw(tmp_path, pages):
    """Returns a function that draws records, and returns the panels by title."""

    def draw_records(*records):
        learning_curve({"run": records}, tmp_path / "curve.png")
        newest = pages[-1]
        return {axes.get_title(loc="left"): axes for axes in newest.axes}

    return draw_records


def points(axes):
    """Returns the points of each line, by label."""
    found = {}
    for line in axes.lines:
        name = str(line.get_label())
        found[name] = list(map(tuple, line.get_xydata()))
    return found


def test_each_panel_shows_its_values(draw):
    panels = draw(
        train(1, 6.0),
        valid(1, 3.0, bleu=10),
        train(2, 4.0),
        valid(2, 2.5, bleu=30),
        valid(3, 2.75),
    )
    assert list(panels) == [LOSS, PERPLEXITY, BLEU, RATE, SPEED]
    assert points(panels[LOSS]) == {
        "training": [(1, 6.0), (2, 4.0)],
        "validation": [(1, 3.0), (2, 2.5), (3, 2.75)],
    }
    assert points(panels[PERPLEXITY])["training"] == [(1, math.exp(6)), (2, math.exp(4))]
    assert points(panels[BLEU]) == {"validation": [(1, 10.0), (2, 30.0)]}
    assert points(panels[RATE]) == {"training": [(1, 1e-6), (2, 2e-6)]}

    panels = draw(train(1), valid(2, nats_per_character=1.5, exact_match=98.4))
    assert list(panels) == [LOSS, PERPLEXITY, NATS, EXACT, RATE, SPEED]

    mixture = {"bleu": 10, "bleu/my/text": 30}
    panels = draw(train(1), valid(1, **mixture), valid(2, **mixture))
    assert list(panels) == [LOSS, PERPLEXITY, BLEU, "sacreBLEU/my/text", RATE, SPEED]
    for name in (BLEU, "sacreBLEU/my/text"):
        assert panels[name].get_ylim()[0] == 0
    assert panels["sacreBLEU/my/text"].get_title(loc="right") == "best 30"


def test_every_value_of_a_task_is_drawn_in_the_order_of_its_validations(draw):
    """Whatever its scale, sign and name; the legend is outside of all panels."""
    own = {"reward $x$": -2.0, "memory": 3e9, "tiny": 1e-7, "same": 0}
    better = own | {"reward $x$": -1.0}

    panels = draw(
        train(1) | {"own": 5.0, "grad_norm": 1.0, "waiting": 0.5},
        {"kind": "valid", "step": 1, **own, "loss": 2.0},
        {"kind": "valid", "step": 2, **better, "loss": 1.5},
    )

    assert list(panels) == [*own, LOSS, PERPLEXITY, RATE, SPEED, "own"]
    assert points(panels["reward $x$"]) == {"validation": [(1, -2.0), (2, -1.0)]}
    for name, value in own.items():
        low, high = panels[name].get_ylim()
        assert low < value < high
    assert panels[LOSS].get_title(loc="right") == "best 1.5"

    (legend,) = panels[LOSS].figure.legends
    for axes in panels.values():
        assert not legend.get_window_extent().overlaps(axes.get_tightbbox())


def test_several_runs_share_panels_and_have_a_color_each(tmp_path, pages):
    runs = {
        "runs/a": [train(1, 3.0), valid(1, 4.0, bleu=1.0)],
        "runs/b": [train(2, 2.0), valid(2, 3.0)],
    }
    learning_curve(runs, tmp_path / "both.png")

    panels = {axes.get_title(loc="left"): axes for axes in pages[-1].axes}
    assert points(panels[LOSS]) == {
        "runs/a, training": [(1, 3.0)],
        "runs/a, validation": [(1, 4.0)],
        "runs/b, training": [(2, 2.0)],
        "runs/b, validation": [(2, 3.0)],
    }
    assert points(panels[BLEU]) == {"runs/a, validation": [(1, 1.0)]}
    assert panels[LOSS].get_title(loc="right") == ""

    colors = {line.get_label(): line.get_color() for line in panels[LOSS].lines}
    assert colors["runs/a, training"] == colors["runs/a, validation"]
    assert len(set(colors.values())) == 2


def test_nothing_to_draw_is_refused(tmp_path):
    records = [{"kind": "train", "step": 1, "loss": math.nan}]
    with pytest.raises(UserError, match="expected a run with reports to draw: got none"):
        learning_curve({"run": records}, tmp_path / "curve.png")


def test_user_settings_have_no_effect(tmp_path):
    records = [train(1), train(2)]
    plain = tmp_path / "plain.svg"
    fancy = tmp_path / "fancy.svg"

    learning_curve({"run": records}, plain)
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "figure.dpi": 33}):
        learning_curve({"run": records}, fancy)

    assert plain.read_bytes() == fancy.read_bytes()


def test_metrics_are_read_back_without_an_incomplete_last_line(tmp_path):
    records = [train(1), valid(1, math.inf), train(2)]
    path = tmp_path / "metrics.jsonl"
    lines = [f"{json.dumps(record)}\n" for record in records]
    whole = "".join(lines).encode()

    last = json.dumps(train(3)).encode()
    incomplete = [last[:length] for length in range(len(last))]
    damaged = last[:9] + b"\xff\x00"
    for end in [*incomplete, damaged]:
        path.write_bytes(whole + end)
        assert read_metrics(path) == records


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b"nonsense", "'nonsens"),
        (b"[" * 100_000, ""),
        (b'{"kind": "train", "step": ' + b"9" * 5000 + b', "loss": 1}', ""),
        (b"\xff\xfe", ""),
    ],
)
def test_damage_before_the_last_line_is_named(line, found, tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"kind": "train"}\n' + line + b'\n{"kind": "train"}\n')
    with pytest.raises(UserError, match=rf"metrics\.jsonl:2: expected a JSON object, got {found}"):
        read_metrics(path)
