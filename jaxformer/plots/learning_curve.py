"""Learning curves: loss, scores, learning rate and speed by optimizer step."""

import io
import json
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullLocator

from jaxformer.errors import UserError
from jaxformer.files import read_whole
from jaxformer.plots import figure

# For each metric: the title of its panel, and the function that selects the best value.
_PANELS = {
    "loss": ("Loss", min),
    "perplexity": ("Perplexity", min),
    "nats_per_character": ("Nats per character on the validation set", min),
    "bleu": ("sacreBLEU on the validation set", max),
    "f1": ("F1 of brackets on the validation set (%)", max),
    "exact_match": ("Exact matches on the validation set (%)", max),
    "learning_rate": ("Learning rate (10⁻³)", None),
    "tokens_per_second": ("Tokens per second", None),
}
_MOST_BYTES = 64 << 20  # Metrics of 400,000 reports.
_PERCENTAGES = ("bleu", "f1", "exact_match")
_DIVERGED = 1e9  # Larger values, inf and NaN are omitted, since they would flatten the curve.
_LOOKS = {
    "train": {"color": figure.BLUE, "label": "training"},
    "valid": {
        "color": figure.ORANGE,
        "label": "validation",
        "marker": "o",
        "markersize": 4,
        "markeredgecolor": "white",
        "markeredgewidth": 0.6,
    },
}


def read_metrics(path: pathlib.Path) -> list[dict[str, Any]]:
    """Reads the records of ``metrics.jsonl``, one JSON object per line.

    An incomplete last line, left by a killed run, is ignored.

    Raises:
      UserError: The file is missing, too large, or a line before the last is not a JSON object.
    """
    try:
        content = read_whole(path, path.parent, most=_MOST_BYTES)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; expected the metrics of a run") from None
    records = []
    for number, raw in enumerate(io.BytesIO(content), start=1):
        if raw.isspace():
            continue
        line = raw.decode(errors="replace")
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict):
            records.append(record)
        elif raw.endswith(b"\n"):  # Otherwise it is the last line, and incomplete.
            raise UserError(f"{path}:{number}: expected a JSON object, got {line[:50]!r}")
    return records


def learning_curve(records: Sequence[Mapping[str, Any]], path: pathlib.Path) -> None:
    """Plots a run as an image, with one panel for each metric in the records.

    Args:
      records: Records of ``metrics.jsonl``: "kind" is "train" or "valid", "step" counts optimizer
        steps, and the metrics are any of "loss", "perplexity", "nats_per_character", "bleu",
        "f1", "exact_match", "learning_rate" and "tokens_per_second". Values of 10^9 or more, inf
        and NaN are omitted.
      path: The image, .png or .svg; replaced atomically.

    Raises:
      UserError: There is nothing to draw.
    """
    curves = {name: {kind: _curve(records, kind, name) for kind in _LOOKS} for name in _PANELS}
    shown = [name for name in _PANELS if any(curves[name].values())]
    if not shown:
        raise UserError("expected a run with reports to draw: got none; let it train for longer")
    rows = 2 if len(shown) > 3 else 1
    columns = math.ceil(len(shown) / rows)
    with figure.style():
        page = Figure(figsize=(3.5 * columns, 2.3 * rows), layout="constrained")
        grid = page.subplots(rows, columns, squeeze=False, sharex=True)
        for place, axes in enumerate(grid.flat):
            if place >= len(shown):
                axes.remove()
                continue
            _draw(axes, shown[place], curves[shown[place]])
            if place + columns >= len(shown):  # the lowest one of its column
                axes.tick_params(labelbottom=True)
                axes.set_xlabel("step")
        page.align_ylabels()
        figure.save(page, path)


def _curve(records: Sequence[Mapping[str, Any]], kind: str, name: str) -> dict[int, float]:
    """Returns values by step; if a resumed run logged a step again, its last value."""
    values = {
        record["step"]: record[name]
        for record in records
        if record.get("kind") == kind
        and isinstance(record.get("step"), int)
        and abs(record["step"]) < 2**53  # a float holds it
        and isinstance(record.get(name), int | float)
    }
    good = {step: value for step, value in sorted(values.items()) if abs(value) < _DIVERGED}
    return {step: float(value) for step, value in good.items()}


def _draw(axes: Axes, name: str, curves: Mapping[str, Mapping[int, float]]) -> None:
    title, best = _PANELS[name]
    axes.set_title(title)
    axes.grid(visible=True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    for kind, curve in curves.items():
        if curve:
            line = axes.plot(list(curve), list(curve.values()), **_LOOKS[kind])[0]
            if len(curve) == 1:  # A line through one point is invisible.
                line.set_marker("o")
    axes.margins(y=0.15)  # Space for the value that _mark writes.
    axes.set_xlim(left=0)
    if name not in ("loss", "perplexity", "nats_per_character"):
        largest = max(value for curve in curves.values() for value in curve.values())
        axes.set_ylim(0, 1.2 * largest if largest > 0 else 1)
        if name in _PERCENTAGES:  # The space above is for the best value.
            top = min(100, axes.get_ylim()[1])
            axes.set_yticks([tick for tick in axes.get_yticks() if tick <= top])
    if name == "learning_rate":
        axes.yaxis.set_major_formatter(lambda rate, _: f"{1000 * rate:g}")
    if name == "tokens_per_second":
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    values = [value for curve in curves.values() for value in curve.values() if value > 0]
    if name == "perplexity" and values and max(values) > 10 * min(values):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(NullLocator())
    if best and curves["valid"]:
        _mark(axes, curves["valid"], best)
    if len(axes.lines) > 1:
        axes.legend(loc="upper right")


def _mark(axes: Axes, curve: Mapping[int, float], best: Callable[..., int]) -> None:
    """Writes the best value of a curve beside it."""
    step = best(curve, key=curve.__getitem__)
    axes.annotate(
        f"best {curve[step]:.2f}",
        (step, curve[step]),
        xytext=(0, 6),
        textcoords="offset points",
        ha="center",
        color=figure.ORANGE,
    )
