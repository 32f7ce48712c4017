"""The loss of language models of five sizes, and a power law that predicts the largest."""

import pathlib
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from jaxformer.paper.claims.charts import draw_panels
from jaxformer.paper.claims.small_runs import TEST_LOSS, Experiment, Figures
from jaxformer.paper.claims.small_tasks import ABOUT_TEXT, text_setting

TRAINED = "trained"
WIDTHS = (4, 8, 16, 32, 64)
LAYERS = 2


def matrix_parameters(width: int) -> int:
    """Returns the number of parameters of the layers' matrices, with d_ff = 4 d_model."""
    attention = 4 * width**2
    feed_forward = 2 * width * (4 * width)
    return LAYERS * (attention + feed_forward)


class PowerLaw(NamedTuple):
    """The loss as factor * parameters^-exponent."""

    factor: float
    exponent: float

    def predict(self, parameters: float) -> float:
        return self.factor * parameters**-self.exponent


def fit_power_law(losses: Mapping[int, float]) -> PowerLaw:
    """Fits a line to the logarithms of parameters and losses, by least squares."""
    x = np.log(list(losses))
    y = np.log(list(losses.values()))
    slope, intercept = np.polyfit(x, y, deg=1)
    return PowerLaw(factor=float(np.exp(intercept)), exponent=float(-slope))


class ScalingLaw(Experiment):
    """Adds the prediction of the largest network by the smaller ones."""

    def report(self, figures: Figures) -> str:
        losses = median_losses(figures)
        law = law_of_smaller(losses)
        largest = max(losses)
        return (
            f"{super().report(figures)}\n"
            f"The smaller sizes give the loss {law.factor:.2f} N^-{law.exponent:.3f}, which "
            f"predicts {law.predict(largest):.3f} for the largest; measured: {losses[largest]:.3f}."
        )

    def draw(self, figures: Figures, path: pathlib.Path) -> None:
        panel = self._panel(figures, TEST_LOSS)
        law = law_of_smaller(median_losses(figures))
        predicted = {size: law.predict(size) for size in figures[TRAINED]}
        lines = {**panel.lines, "law of the smaller sizes": predicted}
        draw_panels([panel._replace(lines=lines)], path)


def median_losses(figures: Figures) -> dict[int, float]:
    losses = {}
    for size, course in figures[TRAINED].items():
        losses[size] = float(np.median(TEST_LOSS.values(course)))
    return losses


def law_of_smaller(losses: Mapping[int, float]) -> PowerLaw:
    """Fits all sizes but the largest."""
    smaller = {size: loss for size, loss in losses.items() if size < max(losses)}
    return fit_power_law(smaller)


SETTINGS = {}
for width in WIDTHS:
    SETTINGS[matrix_parameters(width)] = text_setting(d_model=width, d_ff=4 * width, num_heads=2)

CLAIM = ScalingLaw(
    about=f"{ABOUT_TEXT} Here with 2 heads, and d_model from {WIDTHS[0]} to {WIDTHS[-1]}.",
    x_label="parameters of the layers",
    column="{:,} parameters",
    settings={TRAINED: SETTINGS},
    measures=[TEST_LOSS],
).as_claim("scaling_law", place=120, says="The loss is a power law of the number of parameters.")
