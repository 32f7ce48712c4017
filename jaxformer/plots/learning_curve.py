"""Learning curves of one or several runs: loss, scores, learning rate and speed by step."""

import io
import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullLocator

from jaxformer.errors import UserError
from jaxformer.files import read_whole
from jaxformer.plots import figure

_TITLES = {
    "loss": "Loss",
    "perplexity": "Perplexity",
    "nats_per_character": "Nats per character",
    "bits_per_character": "Bits per character",
    "bleu": "sacreBLEU",
    "f1": "F1 of brackets (%)",
    "exact_match": "Exact matches (%)",
    "learning_rate": "Learning rate (10⁻³)",
    "tokens_per_second": "Tokens per second",
}
_LOSSES = ("loss", "perplexity", "nats_per_character", "bits_per_character")
_SCORES = ("bleu", "f1", "exact_match", "accuracy")
# Names in records that are not drawn.
_NOT_DRAWN = {
    "step",
    "reported",
    "grad_norm",
    "teraflops_per_second",
    "mfu",
    "seconds_per_step",
    "waiting",
    "skipped",
}
_MAX_BYTES = 64 << 20  # Metrics of 400,000 reports.
_MAX_PANELS = 99
# Larger values, inf and NaN are omitted, since they would flatten the curve.
_DIVERGED = 1e9  # of the metrics in _TITLES
_LARGEST = 1e30  # of other metrics
_KINDS = {"train": "training", "valid": "validation"}
_COLORS = {"train": figure.BLUE, "valid": figure.ORANGE}  # of one run
# Of several runs, which have a color each.
_RUN_COLORS = (
    figure.BLUE,
    figure.ORANGE,
    figure.GREEN,
    figure.PURPLE,
    figure.GRAY,
    figure.YELLOW,
)
MAX_RUNS = len(_RUN_COLORS)
_MARKERS = {
    "marker": "o",
    "markersize": 4,
    "markeredgecolor": "white",
    "markeredgewidth": 0.6,
}


class _Line(NamedTuple):
    """The run and the kind of reports of a line, in all panels."""

    run: str
    kind: str  # a key of _KINDS


# Values by step.
_Curve: TypeAlias = dict[int, float]


def read_metrics(path: pathlib.Path) -> list[dict[str, Any]]:
    """Reads ``metrics.jsonl``, one JSON object per line, and ignores an incomplete last line."""
    content = read_whole(path, path.parent, limit=_MAX_BYTES)
    records = []
    for number, raw in enumerate(io.BytesIO(content), start=1):
        if raw.isspace():
            continue

        line = raw.decode(errors="replace")
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None

        is_complete = raw.endswith(b"\n")
        if isinstance(record, dict):
            records.append(record)
        elif is_complete:
            raise UserError(f"{path}:{number}: expected a JSON object, got {line[:50]!r}")
    return records


def learning_curve(
    runs: Mapping[str, Sequence[Mapping[str, Any]]],
    path: pathlib.Path,
) -> None:
    """Plots the records of runs as a PNG or SVG, with one panel for each metric.

    In a record, "kind" is "train" or "valid", "step" counts optimizer steps, and all other numbers
    are metrics. Validation values come first, in their order, starting with the value that selects
    the best checkpoint.

    Args:
      runs: Records by the name of the run: at most ``MAX_RUNS``. Several runs have a color each,
        and their lines of training are thin.
      path: Image to write.

    Raises:
      UserError: There is nothing to draw.
    """
    curves = _all_curves(runs)
    shown = list(curves)
    if not shown:
        raise UserError("expected a run with reports to draw: got none; let it train for longer")

    styles = _line_styles(list(runs))
    rows = math.ceil(len(shown) / 3)
    columns = math.ceil(len(shown) / rows)
    width = 3.5 * columns
    height = 0.3 + 2.2 * rows
    with figure.open_figure(path, width, height) as page:
        grid = page.subplots(rows, columns, squeeze=False, sharex=True)
        for place, axes in enumerate(grid.flat):
            if place >= len(shown):
                axes.remove()
                continue

            name = shown[place]
            _draw(axes, name, curves[name], styles)
            if len(runs) == 1:
                _name_best(axes, name, curves[name])

            is_lowest = place + columns >= len(shown)  # of its column
            if is_lowest:
                axes.tick_params(labelbottom=True)
                axes.set_xlabel("step")

        # One entry for each line, although all panels have them.
        drawn = {}
        for axes in page.axes:
            for line in axes.lines:
                drawn[str(line.get_label())] = line
        labels = [str(style["label"]) for style in styles.values()]
        handles = [drawn[label] for label in labels if label in drawn]
        page.legend(handles=handles, loc="outside upper right", ncols=2)
        page.align_ylabels()


def _line_styles(runs: Sequence[str]) -> dict[_Line, dict[str, Any]]:
    """Returns matplotlib's settings of each line, in the order of the legend."""
    styles = {}
    for run, color in zip(runs, _RUN_COLORS, strict=False):
        for kind, kind_name in _KINDS.items():
            style: dict[str, Any]
            if len(runs) == 1:
                style = {"color": _COLORS[kind], "label": kind_name}
            else:
                name = figure.replace_missing_glyphs(run)
                style = {"color": color, "label": f"{name}, {kind_name}"}
                if kind == "train":
                    style["linewidth"] = 0.7
            if kind == "valid":
                style |= _MARKERS
            styles[_Line(run, kind)] = style
    return styles


def _all_curves(
    runs: Mapping[str, Sequence[Mapping[str, Any]]],
) -> dict[str, dict[_Line, _Curve]]:
    """Returns the curves to draw, by metric."""
    names = {}
    for kind in ("valid", "train"):
        for records in runs.values():
            for record in records:
                if record.get("kind") == kind:
                    names.update(dict.fromkeys(record))
    drawn = [name for name in names if name not in _NOT_DRAWN]

    all_curves = {}
    for name in drawn[:_MAX_PANELS]:
        curves = {}
        for run, records in runs.items():
            for kind in _KINDS:
                curve = _curve(records, kind, name)
                if curve:
                    curves[_Line(run, kind)] = curve
        if curves:
            all_curves[name] = curves
    return all_curves


def _curve(
    records: Sequence[Mapping[str, Any]],
    kind: str,
    name: str,
) -> _Curve:
    """Returns values by step; if a resumed run logged a step again, its last value."""
    values = {}
    for record in records:
        if record.get("kind") != kind:
            continue

        step = record.get("step")
        value = record.get(name)
        is_exact = isinstance(step, int) and abs(step) < 2**53  # A float holds it.
        if is_exact and isinstance(value, int | float):
            values[step] = value

    limit = _DIVERGED if name in _TITLES else _LARGEST
    curve = {}
    for step, value in sorted(values.items()):
        if abs(value) < limit:
            curve[step] = float(value)
    return curve


def _draw(
    axes: Axes,
    name: str,
    curves: Mapping[_Line, _Curve],
    styles: Mapping[_Line, dict[str, Any]],
) -> None:
    axes.set_title(_title_of(name), parse_math=False)
    axes.grid(visible=True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))

    for which, curve in curves.items():
        steps = list(curve)
        values = list(curve.values())
        (line,) = axes.plot(steps, values, **styles[which])
        if len(curve) == 1:
            # A line through one point is invisible.
            line.set_marker("o")

    axes.set_xlim(left=0)
    _format_values(axes, name, list(curves.values()))


def _without_corpus(name: str) -> str:
    """Returns the metric of a score of one corpus, such as "bleu" for "bleu/my/train"."""
    metric, _, _ = name.partition("/")
    return metric


def _title_of(name: str) -> str:
    metric = _without_corpus(name)
    if metric in _TITLES:
        name = name.replace(metric, _TITLES[metric], 1)
    # Names that we do not know may be anything.
    return figure.replace_missing_glyphs(name)[:40]


def _name_best(axes: Axes, name: str, curves: Mapping[_Line, _Curve]) -> None:
    """Writes the best value of the validations of a run beside the title."""
    metric = _without_corpus(name)
    if metric not in (*_LOSSES, *_SCORES):
        return
    for line, curve in curves.items():
        if line.kind == "valid":
            values = curve.values()
            best = min(values) if metric in _LOSSES else max(values)
            axes.set_title(f"best {best:.4g}", loc="right", color=_COLORS["valid"])


def _format_values(
    axes: Axes,
    name: str,
    curves: Sequence[_Curve],
) -> None:
    """Sets limits, scale and labels of the vertical axis."""
    if _without_corpus(name) in (*_SCORES, "learning_rate", "tokens_per_second"):
        axes.set_ylim(bottom=0)
        _, top = axes.get_ylim()
        axes.set_ylim(top=1.04 * top)  # Its margin was for a shorter axis.
    if name == "learning_rate":
        axes.yaxis.set_major_formatter(lambda rate, _: f"{1000 * rate:g}")
    if name == "tokens_per_second":
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))

    if name == "perplexity":
        positive = []
        for curve in curves:
            positive += [value for value in curve.values() if value > 0]

        # A perplexity that falls from thousands would hide all later differences.
        has_wide_range = positive and max(positive) > 10 * min(positive)
        if has_wide_range:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_locator(NullLocator())
