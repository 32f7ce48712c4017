"""A claim, and the text and picture that its measurements become."""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim about the Transformer and its measurement.

    Attributes:
      name: Name on the command line, and of its files.
      place: Sorts the claims.
      says: The claim in one line, as it is often made.
      measure: Computes the figures; takes at most two minutes of two cores, or ten if it trains.
      report: Formats the figures: their settings, and tables in Markdown.
      draw: Draws the figures as a PNG or SVG.
    """

    name: str
    place: int
    says: str
    measure: Callable[[], Any]
    report: Callable[[Any], str]
    draw: Callable[[Any, pathlib.Path], None]


def digits(value: float) -> str:
    """Formats a number with three significant digits, and thousands with commas."""
    size = abs(value)
    if size == 0 or size >= 1e7 or size < 1e-3:
        return f"{value:.1e}" if size else "0"
    if size >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
