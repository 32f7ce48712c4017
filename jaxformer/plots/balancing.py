"""The angle of a pole during an episode of each policy, and the mean returns."""

import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from jaxformer.plots import figure

_COLORS = (figure.GREEN, figure.BLUE, figure.ORANGE)


def draw_balancing(
    angles: Mapping[str, Float[np.ndarray, " T"]],
    returns: Mapping[str, Sequence[int]],
    path: pathlib.Path,
) -> None:
    """Draws one episode of each policy, given the angles in radians, and the mean returns."""
    with figure.open_figure(path, width=7.2, height=2.6) as page:
        left, right = page.subplots(1, 2, width_ratios=(3, 1))
        for color, (name, values) in zip(_COLORS, angles.items(), strict=True):
            left.plot(np.degrees(values), color=color, label=name)
        left.set_xlabel("Timestep")
        left.set_ylabel("Angle of the pole (degrees)")
        left.legend()

        means = [np.mean(values) for values in returns.values()]
        right.bar(list(returns), means, color=_COLORS)
        right.set_ylabel("Mean return")
