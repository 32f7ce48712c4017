"""Gradients of the last output of a layer to inputs at a distance: recurrence and attention."""

import functools
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float

from jaxformer.nn import Keys, MultiHeadAttention
from jaxformer.paper import layer_types
from jaxformer.paper.claims.charts import Panel, draw_panels
from jaxformer.paper.claims.claim import Claim, digits
from jaxformer.paper.table_commands import markdown_table

WIDTH = 64
LENGTH = 129
SEEDS = 10
DISTANCES = (1, 4, 16, 64, 128)

# By layer, the gradient's norm at each distance from the last position.
Figures = dict[str, Float[np.ndarray, "seeds distances"]]
Layer = Callable[[Array, Array], Array]


def measure() -> Figures:
    found = {}
    for name, layer in LAYERS.items():
        gradients = jax.jit(jax.vmap(functools.partial(gradient_norms, layer)))
        found[name] = np.asarray(gradients(jnp.arange(SEEDS)))
    return found


def gradient_norms(layer: Layer, seed: Array) -> Float[Array, " distances"]:
    """Returns the gradient of a random direction of the last output, at distances 0, 1, ..."""
    of_layer, of_input, of_output = jax.random.split(jax.random.key(seed), 3)
    x = jax.random.normal(of_input, (1, LENGTH, WIDTH))
    direction = jax.random.normal(of_output, (WIDTH,))

    gradient = jax.grad(lambda x: layer(of_layer, x)[0, -1] @ direction)(x)[0]
    # Squares of tiny numbers would be zero in float32.
    largest = jnp.abs(gradient).max(axis=-1, keepdims=True)
    norms = largest[:, 0] * jnp.linalg.norm(gradient / largest, axis=-1)
    return norms[::-1]


def recurrent(key: Array, x: Array, radius: float) -> Array:
    """Runs a tanh layer whose matrix of the state is orthogonal times ``radius``."""
    of_inputs, of_state = jax.random.split(key)
    inputs = jax.random.normal(of_inputs, (WIDTH, WIDTH)) / np.sqrt(WIDTH)
    state = radius * jax.random.orthogonal(of_state, WIDTH)
    return layer_types.recurrent(x, inputs, state)


def run_gated(key: Array, x: Array, cell: nn.RNNCellBase) -> Array:
    layer: Any = nn.RNN(cell)
    return layer.apply(layer.init(key, x), x)


def attention(key: Array, x: Array) -> Array:
    """Runs causal self-attention of four heads."""
    layer: Any = MultiHeadAttention(4)
    mask = Keys.of_sequence(LENGTH, causal=True).allowed()
    return layer.apply(layer.init(key, x), x, mask=mask)


LAYERS: dict[str, Layer] = {
    "tanh recurrence": functools.partial(recurrent, radius=1.0),
    "GRU": functools.partial(run_gated, cell=nn.GRUCell(WIDTH)),
    "LSTM": functools.partial(run_gated, cell=nn.LSTMCell(WIDTH)),
    "self-attention": attention,
}


def report(figures: Figures) -> str:
    rows = []
    for name, norms in figures.items():
        relative = np.median(norms / norms[:, :1], axis=0)
        rows.append([name, *(digits(float(relative[distance])) for distance in DISTANCES)])

    table = markdown_table(["gradient at distance", *map(str, DISTANCES)], rows)
    return (
        f"Gradient of the last output to an earlier input, relative to the last input; one random "
        f"layer of width {WIDTH}, {LENGTH} positions, medians of {SEEDS} seeds.\n\n{table}"
    )


def draw(figures: Figures, path: pathlib.Path) -> None:
    lines = {}
    for name, norms in figures.items():
        relative = np.median(norms / norms[:, :1], axis=0)
        values = enumerate(relative.tolist())
        lines[name] = {distance: value for distance, value in values if value > 1e-30}
    title = "Gradient to an earlier input, relative"
    panel = Panel(title, "distance, positions", lines, log_y=True, markers=False)
    draw_panels([panel], path)


CLAIM = Claim(
    name="gradients_in_time",
    place=80,
    says="Gradients vanish through time in recurrent networks, and not in attention.",
    measure=measure,
    report=report,
    draw=draw,
)
