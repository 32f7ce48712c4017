"""Pictures of one value for each attention head: a grid of layers and heads for each kind."""

import pathlib
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from jaxformer.plots.figure import GRAY, open_figure, write_values

_CELL = 0.42  # inches, enough for a number of six characters
_CHARACTER = 0.07  # inches
_HIGHEST = 12  # cells of more layers have no numbers


def draw_head_grids(
    lost: Mapping[str, Float[np.ndarray, "L H"]],
    path: pathlib.Path,
    *,
    label: str,
) -> None:
    """Draws one value for each head, with a grid of layers and heads for each kind of attention.

    All grids share one color scale, whose middle is zero.

    Args:
      lost: By kind of attention, the value of each head.
      path: File to write, PNG or SVG.
      label: Name of the values, with their unit.
    """
    largest = max(np.nanmax(np.abs(values)) for values in lost.values()) or 1.0
    across = max(values.shape[1] for values in lost.values())
    down = sum(values.shape[0] for values in lost.values())
    width = max(across * _CELL + 1.6, 3.2)
    height = down * _CELL + 0.6 * len(lost) + 0.4
    # Beside few layers, the label of the color bar is longer than the bar.
    height = max(height, _CHARACTER * len(label))

    with open_figure(path, width, height) as page:
        ratios = [len(values) for values in lost.values()]
        grid = page.subplots(len(lost), squeeze=False, height_ratios=ratios)[:, 0]
        for axes, (kind, values) in zip(grid, lost.items(), strict=True):
            image = axes.imshow(values, "PuOr_r", aspect="auto", vmin=-largest, vmax=largest)
            axes.set_title(f"{kind} attention", color=GRAY)
            axes.set_ylabel("layer")
            layers, heads = values.shape
            axes.set_yticks(range(layers), [str(layer + 1) for layer in range(layers)])
            axes.set_xticks(range(heads), [str(head + 1) for head in range(heads)])
            if max(layers, heads) <= _HIGHEST:
                write_values(axes, values, "{:z.3f}", dark_above=0.6 * largest, points=7)
        grid[-1].set_xlabel("head")

        bar = page.colorbar(image, ax=page.axes, pad=0.02)
        bar.set_label(label)
