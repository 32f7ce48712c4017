"""Gradients and positions in deep stacks, with and without residual connections and norms.

Random parameters, without training. Each kind of layer is a block of self-attention and a
feed-forward network; only the connection around the sub-layers differs.
"""

import functools
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float, Int

from jaxformer.nn import Block, FeedForward, Keys, LayerNorm, MultiHeadAttention, Residual
from jaxformer.paper.claims.charts import Panel, draw_panels
from jaxformer.paper.claims.claim import Claim, digits
from jaxformer.paper.table_commands import markdown_table

WIDTH = 64
HEADS = 4
POSITIONS = 16
SEEDS = 5
DEPTHS = (1, 3, 6, 12, 24, 50, 100)


class WithoutResidual(nn.Module):
    """Norm(Sublayer(x)), or only Sublayer(x)."""

    has_norm: bool

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T D"],
        sublayer: Callable[[Array], Array],
        dropout: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T D"]:
        y = sublayer(x)
        return LayerNorm(name="norm")(y) if self.has_norm else y


class WithoutNorm(nn.Module):
    """Computes x + Sublayer(x)."""

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T D"],
        sublayer: Callable[[Array], Array],
        dropout: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T D"]:
        return x + sublayer(x)


CONNECTIONS: dict[str, Callable[[], Any]] = {
    "residual, then norm (the paper)": Residual,
    "norm first, and residual": functools.partial(Residual, "pre"),
    "norm, no residual": functools.partial(WithoutResidual, True),
    "residual, no norm": WithoutNorm,
    "neither": functools.partial(WithoutResidual, False),
}


class Signals(NamedTuple):
    """Gradient, scale and similarity of a random stack: scalars, or one for each seed."""

    gradient: Float[Array, "..."]  # norm of the gradient of the loss to the input
    scale: Float[Array, "..."]  # standard deviation of the output
    similarity: Float[Array, "..."]  # mean cosine of the outputs of two positions


Figures = dict[str, dict[int, Signals]]


def measure() -> Figures:
    """Returns the medians over seeds, by connection and depth."""
    seeds = jnp.arange(SEEDS)
    found: Figures = {}
    for name, make_residual in CONNECTIONS.items():
        # One program for all depths.
        program = jax.jit(jax.vmap(signals_function(make_residual), in_axes=(0, None)))
        by_depth = {}
        for depth in DEPTHS:
            every = jax.device_get(program(seeds, depth))
            by_depth[depth] = Signals(*(np.median(values) for values in every))
        found[name] = by_depth
    return found


def signals_function(make_residual: Callable[[], Any]) -> Callable[[Array, Array], Signals]:
    """Returns a function of a seed and a depth, at most the largest of ``DEPTHS``."""
    block: Any = Block(
        MultiHeadAttention(HEADS), FeedForward(4 * WIDTH), make_residual=make_residual
    )
    keys = Keys.of_sequence(POSITIONS)

    def signals(seed: Array, depth: Array) -> Signals:
        of_layers, of_input, of_loss = jax.random.split(jax.random.key(seed), 3)
        x = jax.random.normal(of_input, (1, POSITIONS, WIDTH))
        direction = jax.random.normal(of_loss, x.shape)

        layers = jax.random.split(of_layers, max(DEPTHS))
        params = jax.vmap(lambda key: block.init(key, x, keys)["params"])(layers)

        def output(x: Array) -> Array:
            def layer(h: Array, numbered: tuple[Array, Any]) -> tuple[Array, None]:
                number, own = numbered
                after = block.apply({"params": own}, h, keys)
                return jnp.where(number < depth, after, h), None

            numbers = jnp.arange(max(DEPTHS))
            return jax.lax.scan(layer, x, (numbers, params))[0]

        y = output(x)
        gradient = jax.grad(lambda x: (output(x) * direction).mean())(x)
        return Signals(jnp.linalg.norm(gradient), y.std(), _similarity(y[0]))

    return signals


def _similarity(y: Float[Array, "T D"]) -> Float[Array, ""]:
    """Returns the mean cosine of two different positions."""
    largest = jnp.abs(y).max(axis=-1, keepdims=True)
    scaled = y / largest  # squares of tiny or huge numbers would not be finite
    units = scaled / jnp.linalg.norm(scaled, axis=-1, keepdims=True)
    cosines = units @ units.T
    count = len(y)
    return (cosines.sum() - count) / (count * (count - 1))


def report(figures: Figures) -> str:
    shown = (6, 24, 100)
    names = {
        "gradient": "gradient to the input",
        "scale": "standard deviation of the output",
        "similarity": "cosine of two positions",
    }
    sections = []
    for field, title in names.items():
        header = [title, *(f"{depth} layers" for depth in shown)]
        rows = []
        for connection, by_depth in figures.items():
            values = [float(getattr(by_depth[depth], field)) for depth in shown]
            rows.append([connection, *map(_cell, values)])
        sections.append(markdown_table(header, rows))

    return (
        f"Random parameters, d_model = {WIDTH}, {HEADS} heads, {POSITIONS} positions, float32; "
        f"medians of {SEEDS} seeds. 0.9^100 = {0.9**100:.1e}.\n\n" + "\n".join(sections)
    )


def _cell(value: float) -> str:
    return digits(value) if np.isfinite(value) else "not finite"


def draw(figures: Figures, path: pathlib.Path) -> None:
    def lines(field: str) -> dict[str, dict[float, float]]:
        found = {}
        for name, by_depth in figures.items():
            values = {depth: float(getattr(each, field)) for depth, each in by_depth.items()}
            found[name] = {depth: each for depth, each in values.items() if np.isfinite(each)}
        return found

    gradients = {}
    for name, values in lines("gradient").items():
        gradients[name] = {depth: each for depth, each in values.items() if each > 0}

    draw_panels(
        [
            Panel("Gradient to the input", "layers", gradients, log_x=10, log_y=True),
            Panel("Cosine of two positions in the output", "layers", lines("similarity"), log_x=10),
        ],
        path,
    )


CLAIM = Claim(
    name="residual",
    place=10,
    says="Residual connections keep the gradient from vanishing.",
    measure=measure,
    report=report,
    draw=draw,
)
