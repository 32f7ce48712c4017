"""The one style of all pictures of claims: lines with markers, readable on a narrow screen.

Earlier lines are wider, so that they remain visible where later ones have the same values.
"""

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jaxformer.plots import figure

# Inches; a picture of this width is legible on a screen of 360 points.
_WIDTH = 4.6
_HEIGHT = 2.5
_LOOKS = (
    (figure.BLUE, "o"),
    (figure.ORANGE, "s"),
    (figure.GREEN, "D"),
    (figure.PURPLE, "^"),
    (figure.GRAY, "v"),
)


# The value at each x, an int or a float.
Points = Mapping[Any, float]


class Panel(NamedTuple):
    """A set of lines over one axis.

    Attributes:
      title: Name of the values, with their unit.
      x_label: Name of the horizontal axis, with its unit.
      lines: By label, the value at each x.
      ranges: By label, the lowest and the highest value at each x, drawn as bars.
      log_x: The base of a logarithmic horizontal axis, or None.
      log_y: True for a logarithmic vertical axis.
      markers: True for a marker and a tick at each x, False for lines of many points.
    """

    title: str
    x_label: str
    lines: Mapping[str, Points]
    ranges: Mapping[str, Mapping[Any, tuple[float, float]]] = {}
    log_x: float | None = None
    log_y: bool = False
    markers: bool = True


def draw_panels(panels: Sequence[Panel], path: pathlib.Path) -> None:
    """Draws panels below each other, with one legend, in the first of them."""
    with figure.open_figure(path, _WIDTH, _HEIGHT * len(panels)) as page:
        all_axes = page.subplots(len(panels), squeeze=False)[:, 0]
        for panel, axes in zip(panels, all_axes, strict=True):
            _draw_lines(panel, axes)

        # Above the axes, so that it hides no line.
        page.legend(
            *all_axes[0].get_legend_handles_labels(),
            loc="outside upper left",
            ncols=2,
        )


def _draw_lines(panel: Panel, axes: Any) -> None:
    for label, values, (color, marker), later in _looks(panel.lines):
        axes.plot(
            list(values),
            list(values.values()),
            f"{marker}-" if panel.markers else "-",
            color=color,
            linewidth=1.2 + 0.45 * later,
            markersize=4 + 0.75 * later,
            label=label,
        )
        for x, (lowest, highest) in panel.ranges.get(label, {}).items():
            axes.vlines(x, lowest, highest, color=color, alpha=0.5)

    if panel.log_x is not None:
        axes.set_xscale("log", base=panel.log_x)
    if panel.markers:
        points = sorted({x for values in panel.lines.values() for x in values})
        axes.set_xticks(points, [_tick(x) for x in points])
        axes.minorticks_off()
    if panel.log_y:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")

    axes.set_title(panel.title)
    axes.set_xlabel(panel.x_label)
    axes.grid(visible=True)
    axes.spines[["top", "right"]].set_visible(False)


def _tick(x: float) -> str:
    """Formats a number as the tables do, with commas between thousands."""
    return f"{x:,}" if isinstance(x, int) else f"{x:g}"


def _looks(
    lines: Mapping[str, Points],
) -> Iterator[tuple[str, Points, tuple[str, str], int]]:
    """Yields a color, a marker, and the number of later lines, for each line."""
    for number, (label, values) in enumerate(lines.items(), start=1):
        yield label, values, _LOOKS[number - 1], len(lines) - number
