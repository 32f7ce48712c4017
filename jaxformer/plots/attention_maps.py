"""Attention maps: heatmaps of the weights of each head of a layer."""

import math
import pathlib
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib.axis import Axis

from jaxformer.plots import figure

_ACROSS = 4  # panels in a row
_CELL = 0.17  # inches, enough for a label of 7 points
_SHORTEST = 1.2  # inches, the side of a panel
_PAGE = 12.0  # inches, the width of all panels at most
_LONGEST_LABEL = 16  # characters
_CHARACTER = 0.075  # inches


def attention_map(
    weights: Float[np.ndarray, "H T S"],
    queries: Sequence[str],
    keys: Sequence[str],
    path: pathlib.Path,
    title: str,
    panels: Sequence[str] | None = None,
    *,
    annotate: bool = False,
) -> None:
    """Draws the attention weights of one layer as a PNG or SVG, one panel for each head.

    Rows are queries and columns are keys, labeled from the top and from the left. All heads share
    one color scale, from 0 to the largest weight. ``panels`` are the titles of the heads, by
    default "head 1" and so on. With ``annotate``, each cell has its weight in percent. See
    :func:`token_label` for the labels, and :func:`~jaxformer.plots.figure.save_figure` for the
    formats.
    """
    assert weights.shape[1:] == (len(queries), len(keys))
    heads = len(weights)
    panels = [f"head {number}" for number in range(1, heads + 1)] if panels is None else panels
    layout = _lay_out(heads, queries, keys)

    is_finite = np.isfinite(weights)
    largest = np.max(weights, initial=0.0, where=is_finite) or 1.0
    with figure.open_figure(path, layout.page_width, layout.page_height) as page:
        grid = page.subplots(layout.down, layout.across, squeeze=False)
        for head, axes in enumerate(grid.flat):
            if head >= heads:
                axes.remove()
                continue

            # All heads have one color scale.
            image = axes.imshow(
                weights[head],
                "magma_r",
                aspect="auto",
                vmin=0,
                vmax=largest,
            )
            axes.set_title(panels[head], fontsize=8, color=figure.GRAY)
            if annotate:
                percent = 100 * weights[head]
                figure.write_values(axes, percent, "{:.0f}", dark_above=50 * largest, points=5)

            # Only panels at the edge are labeled.
            is_lowest = head + layout.across >= heads
            columns = keys if is_lowest else []
            _label(axes.xaxis, columns, layout.width, rotation=90)

            is_leftmost = head % layout.across == 0
            rows = queries if is_leftmost else []
            _label(axes.yaxis, rows, layout.height, rotation=0)

        aspect = layout.page_height / 0.12
        bar = page.colorbar(image, ax=page.axes, pad=0.01, aspect=aspect)
        bar.set_label("attention weight")

        wrapped = _wrap(title, layout.page_width)
        page.suptitle(wrapped, x=0.01, ha="left", parse_math=False)


class _Layout(NamedTuple):
    """Sizes of a page of panels, in inches."""

    across: int  # panels in a row
    down: int  # rows of panels
    width: float  # of a panel
    height: float
    page_width: float
    page_height: float


def _lay_out(heads: int, queries: Sequence[str], keys: Sequence[str]) -> _Layout:
    """Returns the sizes of a page with a panel for each head, whose labels are readable."""
    across = min(heads, _ACROSS)
    down = math.ceil(heads / across)
    width = _panel_side(keys, across)
    height = _panel_side(queries, across)

    # Two rows of panels have labels below if the last row is short.
    labeled_rows = 2 if heads % across else 1
    left = _longest_label(queries)
    below = _longest_label(keys)
    return _Layout(
        across=across,
        down=down,
        width=width,
        height=height,
        page_width=across * (width + 0.1) + left + 1.0,
        page_height=down * (height + 0.3) + labeled_rows * below + 0.6,
    )


def _panel_side(labels: Sequence[str], across: int) -> float:
    """Returns the side of a panel with these labels, in inches."""
    side = max(_CELL * len(labels), _SHORTEST)
    return min(side, _PAGE / max(across, 2))


def _longest_label(pieces: Sequence[str]) -> float:
    """Returns the length of the longest label, in inches."""
    labels = [token_label(piece) for piece in pieces]
    return _CHARACTER * max(map(len, labels))


def _wrap(title: str, width: float) -> str:
    """Wraps each line of a title to a width in inches."""
    wrapper = textwrap.TextWrapper(
        int(width / _CHARACTER),
        max_lines=3,
        placeholder=" …",
    )
    lines = figure.replace_missing_glyphs(title).split("\n")
    return "\n".join(map(wrapper.fill, lines))


def _label(axis: Axis, pieces: Sequence[str], side: float, rotation: int) -> None:
    """Labels the cells of an axis that is ``side`` inches long, or every n-th if there are many."""
    # Labels of fewer than 5 points would be illegible.
    points = 72 * side / max(1, len(pieces))
    every = math.ceil(5 / points)
    shown = list(range(0, len(pieces), every))
    labels = [token_label(pieces[i]) for i in shown]

    axis.set_ticks(
        shown,
        labels,
        fontsize=min(7.0, 0.8 * points * every),
        rotation=rotation,
        parse_math=False,
    )
    axis.set_tick_params(length=0)


def token_label(piece: str) -> str:
    """Returns a drawable label of at most 16 characters, with a middle dot for a space."""
    label = figure.replace_missing_glyphs(piece.replace("▁", "·"))
    if len(label) <= _LONGEST_LABEL:
        return label
    return label[: _LONGEST_LABEL - 1] + "…"
