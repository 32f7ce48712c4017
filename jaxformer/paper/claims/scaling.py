"""Variance of the scores of random queries and keys, and the softmax over them, against d_k."""

import functools
import math
import pathlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxformer.paper.claims.charts import Panel, draw_panels
from jaxformer.paper.claims.claim import Claim, digits
from jaxformer.paper.table_commands import markdown_table

QUERIES = 2048
KEYS = 32
SIZES = (4, 16, 64, 256, 1024)


class Softmax(NamedTuple):
    """Measures of scores and their softmax, means over queries."""

    variance: Float[Array, ""]  # of the scores
    largest: Float[Array, ""]  # the largest weight
    gradient: Float[Array, ""]  # trace of the softmax's Jacobian


Figures = dict[str, dict[int, Softmax]]


def measure() -> Figures:
    found: Figures = {"dot product": {}, "dot product / √d_k": {}, "cosine": {}}
    for d_k in SIZES:
        for name, softmax in jax.device_get(softmax_of_scores(d_k)).items():
            found[name][d_k] = softmax
    return found


@functools.partial(jax.jit, static_argnums=0)
def softmax_of_scores(d_k: int) -> dict[str, Softmax]:
    """Measures scores of normal queries and keys, each query with keys of its own."""
    of_queries, of_keys = jax.random.split(jax.random.key(d_k))
    queries = jax.random.normal(of_queries, (QUERIES, d_k))
    keys = jax.random.normal(of_keys, (QUERIES, KEYS, d_k))

    products = jnp.einsum("qk,qsk->qs", queries, keys)
    lengths = jnp.linalg.norm(queries, axis=-1)[:, None] * jnp.linalg.norm(keys, axis=-1)
    scores = {
        "dot product": products,
        "dot product / √d_k": products / math.sqrt(d_k),
        "cosine": products / lengths,
    }
    return {name: _measure_softmax(each) for name, each in scores.items()}


def _measure_softmax(scores: Float[Array, "Q S"]) -> Softmax:
    weights = jax.nn.softmax(scores, axis=-1)
    return Softmax(
        variance=scores.var(),
        largest=weights.max(axis=-1).mean(),
        # The Jacobian is diag(w) - w w^T.
        gradient=(1 - jnp.square(weights).sum(axis=-1)).mean(),
    )


def report(figures: Figures) -> str:
    names = {
        "variance": "variance of the scores",
        "largest": "largest weight",
        "gradient": "gradient of the softmax",
    }
    sections = []
    for field, title in names.items():
        rows = []
        for name, by_size in figures.items():
            values = [digits(float(getattr(by_size[d_k], field))) for d_k in SIZES]
            rows.append([name, *values])
        sections.append(markdown_table([title, *(f"d_k = {d_k}" for d_k in SIZES)], rows))

    return (
        f"{QUERIES:,} random queries with {KEYS} random keys each, all components of variance 1. "
        f"The gradient is the trace of the softmax's Jacobian: {1 - 1 / KEYS:.3f} for equal "
        f"weights, 0 for a single one.\n\n" + "\n".join(sections)
    )


def draw(figures: Figures, path: pathlib.Path) -> None:
    def lines(field: str) -> dict[str, dict[float, float]]:
        found = {}
        for name, by_size in figures.items():
            found[name] = {d_k: float(getattr(each, field)) for d_k, each in by_size.items()}
        return found

    variance = Panel("Variance of the scores", "d_k", lines("variance"), log_x=2, log_y=True)
    gradient = Panel("Gradient of the softmax", "d_k", lines("gradient"), log_x=2)
    draw_panels([variance, gradient], path)


CLAIM = Claim(
    name="scaling",
    place=30,
    says="Without division by sqrt(d_k), dot products grow and the softmax stops learning.",
    measure=measure,
    report=report,
    draw=draw,
)
