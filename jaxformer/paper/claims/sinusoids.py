"""Similarity of positions against their distance, for sinusoids and later encodings."""

import pathlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from jaxformer.nn import rotary_positions, sinusoidal_positions
from jaxformer.nn.positions import BucketedBias, LinearBias
from jaxformer.paper.claims.charts import Panel, draw_panels
from jaxformer.paper.claims.claim import Claim, digits
from jaxformer.paper.table_commands import markdown_table

WIDTH = 512
HEADS = 8
DISTANCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_SHOWN = (1, 4, 16, 64, 256, 1024)


class Figures(NamedTuple):
    """Values at each distance of ``DISTANCES``, and two numbers about sinusoids."""

    cosine: Float[np.ndarray, " N"]  # of two sinusoids
    rotary: Float[np.ndarray, " N"]  # score of two equal vectors, relative to distance 0
    nearest: Float[np.ndarray, " N"]  # ALiBi's bias, in the head with the steepest slope
    widest: Float[np.ndarray, " N"]  # ALiBi's bias, in the head with the flattest slope
    bucket: Float[np.ndarray, " N"]  # T5's number of the bucket, of a causal stack
    smallest: float  # cosine of any two of the first positions
    shift_error: float  # of the linear map from a position to the one ``_SHIFT`` later


_SHIFT = 20


def measure() -> Figures:
    length = max(DISTANCES) + 1
    table = sinusoidal_positions(length, WIDTH, np.float64)
    distances = np.array(DISTANCES)

    units = table / np.linalg.norm(table, axis=1, keepdims=True)
    cosines = units @ units.T

    same = jnp.ones((1, length, 1, WIDTH // HEADS))
    turned = jax.device_get(rotary_positions(same, jnp.arange(length)[None]))[0, :, 0]
    scores = turned @ turned[0] / (turned[0] @ turned[0])

    slopes = LinearBias(HEADS).slopes()
    buckets = BucketedBias(HEADS, causal=True).buckets(-jnp.array(DISTANCES))
    return Figures(
        cosine=cosines[0, distances],
        rotary=scores[distances],
        nearest=-slopes.max() * distances,
        widest=-slopes.min() * distances,
        bucket=np.asarray(buckets),
        smallest=float(cosines.min()),
        shift_error=shift_error(table, _SHIFT),
    )


def shift_error(table: Float[np.ndarray, "T D"], shift: int) -> float:
    """Returns the largest error of one matrix that maps each position to a later one.

    The matrix turns each pair of sine and cosine by a fixed angle, whatever the position.
    """
    width = table.shape[1]
    matrix = np.zeros((width, width))
    for first in range(0, width, 2):
        angle = shift / 10_000 ** (first / width)
        turn = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
        matrix[first : first + 2, first : first + 2] = turn

    return float(np.abs(table[:-shift] @ matrix - table[shift:]).max())


def report(figures: Figures) -> str:
    rows_of = {
        "sinusoids: cosine of two positions": figures.cosine,
        "rotary: score of two equal vectors": figures.rotary,
        "ALiBi: bias, steepest of 8 heads": figures.nearest,
        "ALiBi: bias, flattest of 8 heads": figures.widest,
        "T5: number of the learned bias": figures.bucket,
    }
    rows = []
    for name, values in rows_of.items():
        at = dict(zip(DISTANCES, values.tolist(), strict=True))
        rows.append([name, *(digits(at[distance]) for distance in _SHOWN)])

    table = markdown_table(["distance", *map(str, _SHOWN)], rows)
    return (
        f"Sinusoids of {WIDTH} components, the first {max(DISTANCES) + 1:,} positions; rotary "
        f"positions of heads of {WIDTH // HEADS}. Smallest cosine of two sinusoids: "
        f"{digits(figures.smallest)}. One matrix maps all positions to those {_SHIFT} later, with "
        f"an error of at most {figures.shift_error:.0e}.\n\n{table}"
    )


def draw(figures: Figures, path: pathlib.Path) -> None:
    def line(values: Float[np.ndarray, " N"]) -> dict[float, float]:
        return dict(zip(DISTANCES, values.tolist(), strict=True))

    lines = {
        "sinusoids, cosine": line(figures.cosine),
        "rotary, relative score": line(figures.rotary),
        "ALiBi, e^bias, flattest head": line(np.exp(figures.widest)),
        "ALiBi, e^bias, steepest head": line(np.exp(figures.nearest)),
    }
    draw_panels([Panel("Similarity of two positions", "distance", lines, log_x=2)], path)


CLAIM = Claim(
    name="sinusoids",
    place=50,
    says="The sinusoids of different positions are orthogonal.",
    measure=measure,
    report=report,
    draw=draw,
)
