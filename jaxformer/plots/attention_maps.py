"""Attention maps: heatmaps of the weights of each head of a layer."""

import math
import pathlib
import textwrap
from collections.abc import Sequence

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
    names: Sequence[int] | None = None,
) -> None:
    """Draws the attention weights of one layer as a PNG or SVG, one panel for each head.

    Rows are queries and columns are keys, labeled from the top and from the left. All heads share
    one color scale, from 0 to the largest weight. ``names`` are the numbers of the heads, by
    default from 1. See :func:`token_label` for the labels, and
    :func:`~jaxformer.plots.figure.save_figure` for the formats.
    """
    assert weights.shape[1:] == (len(queries), len(keys))
    heads = len(weights)
    names = range(1, heads + 1) if names is None else names
    across = min(heads, _ACROSS)
    down = math.ceil(heads / across)
    width, height = (  # of a panel, in inches
        min(max(_CELL * len(labels), _SHORTEST), _PAGE / max(across, 2))
        for labels in (keys, queries)
    )
    left, below = (_CHARACTER * max(map(len, map(token_label, side))) for side in (queries, keys))
    labeled = 2 if heads % across else 1  # rows with labels below; two if the last row is short
    page_width = across * (width + 0.1) + left + 1.0
    page_height = down * (height + 0.3) + labeled * below + 0.6
    largest = np.max(weights, initial=0.0, where=np.isfinite(weights)) or 1.0
    with figure.open_figure(path, page_width, page_height) as page:
        grid = page.subplots(down, across, squeeze=False)
        for head, axes in enumerate(grid.flat):
            if head >= heads:
                axes.remove()
                continue
            image = axes.imshow(weights[head], "magma_r", aspect="auto", vmin=0, vmax=largest)
            axes.set_title(f"head {names[head]}", fontsize=8, color=figure.GRAY)
            _label(axes.xaxis, keys if head + across >= heads else [], width, rotation=90)
            _label(axes.yaxis, queries if head % across == 0 else [], height, rotation=0)
        bar = page.colorbar(image, ax=page.axes, pad=0.01, aspect=page_height / 0.12)
        bar.set_label("attention weight")
        wrapper = textwrap.TextWrapper(int(page_width / _CHARACTER), max_lines=3, placeholder=" …")
        lines = map(wrapper.fill, figure.replace_missing_glyphs(title).split("\n"))
        page.suptitle("\n".join(lines), x=0.01, ha="left", parse_math=False)


def _label(axis: Axis, pieces: Sequence[str], side: float, rotation: int) -> None:
    """Labels the cells of an axis that is ``side`` inches long, or every n-th if there are many."""
    points = 72 * side / max(1, len(pieces))
    every = math.ceil(5 / points)
    shown = range(0, len(pieces), every)
    axis.set_ticks(
        list(shown),
        [token_label(pieces[i]) for i in shown],
        fontsize=min(7.0, 0.8 * points * every),
        rotation=rotation,
        parse_math=False,
    )
    axis.set_tick_params(length=0)


def token_label(piece: str) -> str:
    """Returns a drawable label of at most 16 characters, with a middle dot for a space."""
    label = figure.replace_missing_glyphs(piece.replace("▁", "·"))
    return label if len(label) <= _LONGEST_LABEL else label[: _LONGEST_LABEL - 1] + "…"
