"""The gates of a model that reads pictures, layer by layer."""

import pathlib

import numpy as np
from jaxtyping import Float

from jaxformer.plots.figure import BLUE, GRAY, ORANGE, open_figure


def draw_gates(
    attention: Float[np.ndarray, "L ..."],
    feed_forward: Float[np.ndarray, "L ..."],
    layers: list[int],
    path: pathlib.Path,
) -> None:
    """Draws how far the gates are open: the mean of abs(tanh), from 0 to 1, for each block.

    Args:
      attention: Parameters of the gates of cross-attention.
      feed_forward: Parameters of the gates of feed-forward networks.
      layers: Number of the layer of the language model after each block, from 1.
      path: File to write, PNG or SVG.
    """
    with open_figure(path, width=3.2, height=2.0) as page:
        axes = page.add_subplot()
        for gates, label, color in (
            (attention, "cross-attention", BLUE),
            (feed_forward, "feed-forward", ORANGE),
        ):
            axes.plot(layers, openings(gates), "o-", color=color, label=label)
        axes.set_xticks(layers)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("before layer")
        axes.set_ylabel("|tanh(gate)|")
        axes.grid(axis="y")
        axes.legend(labelcolor=GRAY)


def openings(gates: Float[np.ndarray, "L ..."]) -> Float[np.ndarray, " L"]:
    """Returns how far the gates of each block are open: the mean of abs(tanh), from 0 to 1."""
    return np.abs(np.tanh(gates)).reshape(len(gates), -1).mean(axis=1)
