"""Attention as lines between two copies of a sentence, as in figures 3 to 5 of the paper."""

import dataclasses
import itertools
import pathlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgba
from matplotlib.patches import Patch

from jaxformer.plots import figure
from jaxformer.plots.attention_maps import token_label
from jaxformer.plots.paper_figures import PaperFigure

# Dark enough for print, distinct for color-blind readers (after Okabe and Ito), reused cyclically.
_COLORS = (
    "#0072B2",
    "#D55E00",
    "#00805C",
    "#B0508A",
    "#946200",
    "#2B88BD",
    "#5A5A5A",
    "#7A3FD0",
)
_TOKEN = 0.19  # inches from token to token
_NARROWEST = 4.0  # inches
_WIDEST = 14.0  # inches
_GAP = 1.2  # inches between the two rows of tokens
_LETTER = 0.082  # inches
_MIN_WEIGHT = 0.01  # smallest weight that is drawn
# Heights of a row of squares and of a square, as fractions of the gap.
_ROW = 0.04
_SQUARE = 0.036


def figure_panels(number: int, choice: PaperFigure) -> list[PaperFigure]:
    """Returns the panels of figure 3, 4 or 5 from top to bottom, as the paper arranges them."""
    one_head = []
    for head in choice.heads:
        panel = dataclasses.replace(choice, heads=[head], token=None)
        one_head.append(panel)

    panels = {
        3: [choice],
        4: [one_head[0], choice],
        5: one_head,
    }
    return panels[number]


def attention_lines(
    weights: Float[np.ndarray, "H S S"],
    tokens: Sequence[str],
    panels: Sequence[PaperFigure],
    path: pathlib.Path,
    title: str,
) -> None:
    """Draws self-attention of one layer as lines from the queries above to the keys below.

    Each head has a color; opacity and width of a line grow with the weight. Weights below 0.01 are
    not drawn. In a panel of one query, squares below show the weights of all heads, in order. See
    :func:`~jaxformer.plots.figure.save_figure` for the path.
    """
    labels = [token_label(token) for token in tokens]
    width = max(_NARROWEST, _TOKEN * len(tokens))
    width = min(width, _WIDEST)
    longest_label = _LETTER * max(map(len, labels))
    height = _GAP + 2 * longest_label + 0.35

    token_width = width / len(tokens)
    points = min(8.0, 72 * 0.8 * token_width)

    page_height = len(panels) * height + 0.5
    with figure.open_figure(path, width + 0.9, page_height) as page:
        grid = page.subplots(len(panels), 1, squeeze=False)
        rows = grid[:, 0]
        for axes, panel in zip(rows, panels, strict=True):
            _draw(axes, panel, weights)
            _write(axes, panel, labels, points=points)

        title = figure.replace_missing_glyphs(title)
        page.suptitle(title, x=0.01, ha="left", parse_math=False)


def _draw(
    axes: Axes,
    panel: PaperFigure,
    weights: Float[np.ndarray, "H S S"],
) -> None:
    weights = np.minimum(weights.astype(float), 1.0)
    count = weights.shape[2]
    one_query = panel.token is not None
    queries = range(count) if panel.token is None else [panel.token]

    # The lines end above the squares.
    bottom = _ROW * len(panel.heads) if one_query else 0.0
    # The opacity of small weights is raised for one query; for all, they would hide large ones.
    power = 0.5 if one_query else 1.0

    for order, head in enumerate(panel.heads):
        # Lines of different heads run side by side.
        place = (order + 0.5) / len(panel.heads)  # from 0 to 1
        shift = 0.5 * (place - 0.5)
        head_color = _COLORS[head % len(_COLORS)]

        drawn_keys = []
        lines = []
        colors = []
        widths = []
        for query, key in itertools.product(queries, range(count)):
            weight = float(weights[head, query, key])
            is_drawn = weight >= _MIN_WEIGHT
            if not is_drawn:
                continue

            drawn_keys.append(key)
            above = (query + shift, 1.0)
            below = (key + shift, bottom)
            lines.append([above, below])
            colors.append(to_rgba(head_color, weight**power))
            widths.append(0.6 + 1.2 * weight)
        axes.add_collection(LineCollection(lines, colors=colors, linewidths=widths))

        if one_query:
            row = bottom - _ROW * (order + 1)
            for key, color in zip(drawn_keys, colors, strict=True):
                left = key - 0.4
                axes.broken_barh([(left, 0.8)], (row, _SQUARE), facecolor=color)

    axes.set_xlim(-0.6, count - 0.4)
    axes.set_ylim(0, 1)


def _write(
    axes: Axes,
    panel: PaperFigure,
    labels: Sequence[str],
    points: float,
) -> None:
    """Writes the tokens above and below, and a legend of the heads."""
    for spine in axes.spines.values():
        spine.set_visible(False)

    axes.set_yticks([])
    axes.set_xticks(
        range(len(labels)),
        labels,
        rotation=90,
        fontsize=points,
        parse_math=False,
        color="black",
    )
    axes.tick_params(length=0, labeltop=True, labelbottom=True, pad=2)

    if panel.token is not None:
        # Only the query stands out above.
        above = [tick.label2 for tick in axes.xaxis.get_major_ticks()]
        query = above.pop(panel.token)
        query.set_fontweight("bold")
        for label in above:
            label.set_color("#767676")

    # A head that is listed twice has one entry in the legend.
    handles = []
    for head in dict.fromkeys(panel.heads):
        color = _COLORS[head % len(_COLORS)]
        handles.append(Patch(color=color, label=f"head {head + 1}"))
    axes.legend(
        handles=handles,
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        handlelength=0.8,
        handleheight=0.8,
    )
