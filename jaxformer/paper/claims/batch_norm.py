"""Dependence of one sentence's normalized vectors on the other sentences of its batch."""

import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxformer.nn import LayerNorm
from jaxformer.paper.claims.charts import Panel, draw_panels
from jaxformer.paper.claims.claim import Claim, digits
from jaxformer.paper.table_commands import markdown_table

WIDTH = 32
LONGEST = 12
SENTENCES = 64
BATCHES = 50
BATCH_SIZES = (2, 4, 8, 16, 32)


class Spread(NamedTuple):
    """Standard deviation over batches of the same sentence's vectors, mean over components."""

    batch_norm: float
    layer_norm: float


Figures = dict[int, Spread]


def measure() -> Figures:
    rng = np.random.default_rng(0)
    # Sentences differ in length and, as embeddings of frequent and rare words do, in size.
    sizes = np.linspace(0.5, 3, SENTENCES)[:, None, None]
    x = sizes * rng.normal(size=(SENTENCES, LONGEST, WIDTH))
    lengths = rng.integers(3, LONGEST + 1, SENTENCES)
    is_token = np.arange(LONGEST) < lengths[:, None]

    found = {}
    for size in BATCH_SIZES:
        draws = [rng.permutation(np.arange(1, SENTENCES))[: size - 1] for _ in range(BATCHES)]
        # The sentence itself is the first of each batch.
        rows = np.pad(np.stack(draws), ((0, 0), (1, 0)))
        found[size] = spread(x.astype(np.float32)[rows], is_token[rows], int(lengths[0]))
    return found


def spread(
    batches: Float[np.ndarray, "N B T D"],
    is_token: Bool[np.ndarray, "N B T"],
    length: int,
) -> Spread:
    """Normalizes all batches, and compares their first sentences, of ``length`` tokens."""
    deviations = []
    for normalized in jax.device_get(_normalize(batches, is_token)):
        # In float32, the mean of equal numbers is not exactly the number.
        first = normalized[:, 0, :length].astype(np.float64)
        deviations.append(float(first.std(axis=0).mean()))
    return Spread(*deviations)


@jax.jit
def _normalize(
    batches: Float[Array, "N B T D"],
    is_token: Bool[Array, "N B T"],
) -> tuple[Float[Array, "N B T D"], Float[Array, "N B T D"]]:
    layer: Any = LayerNorm()
    params = layer.init(jax.random.key(0), batches[0])
    return jax.vmap(batch_norm)(batches, is_token), layer.apply(params, batches)


def batch_norm(
    x: Float[Array, "B T D"],
    is_token: Bool[Array, "B T"],
) -> Float[Array, "B T D"]:
    """Normalizes each component over all tokens of a batch (Ioffe and Szegedy 2015)."""
    weights = is_token[..., None] / is_token.sum()
    mean = (x * weights).sum(axis=(0, 1))
    centered = x - mean
    variance = (centered**2 * weights).sum(axis=(0, 1))
    return centered / jnp.sqrt(variance + 1e-6)


def report(figures: Figures) -> str:
    rows = []
    for size, found in figures.items():
        rows.append([str(size), digits(found.batch_norm), digits(found.layer_norm)])
    return (
        f"Standard deviation of one sentence's normalized vectors over {BATCHES} random batches; "
        f"sentences of 3 to {LONGEST} tokens, padding left out of the statistics.\n\n"
        + markdown_table(["sentences in a batch", "batch norm", "layer norm"], rows)
    )


def draw(figures: Figures, path: pathlib.Path) -> None:
    lines = {
        "batch norm": {size: found.batch_norm for size, found in figures.items()},
        "layer norm": {size: found.layer_norm for size, found in figures.items()},
    }
    title = "Standard deviation of one sentence over batches"
    draw_panels([Panel(title, "sentences in a batch", lines, log_x=2)], path)


CLAIM = Claim(
    name="batch_norm",
    place=20,
    says="Batch norm does not suit sentences, layer norm does.",
    measure=measure,
    report=report,
    draw=draw,
)
