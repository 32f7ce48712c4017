"""Layers or steps until the last output depends on the first input.

Measured by derivatives of one layer; for convolutions with growing dilation, a formula.
"""

import pathlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from jaxformer.paper import layer_types
from jaxformer.paper.claims.charts import Panel, draw_panels
from jaxformer.paper.claims.claim import Claim
from jaxformer.paper.table_commands import markdown_table

WIDTH = 4
KERNEL = 3
LENGTHS = (8, 16, 32, 64)

Layer = Callable[[Array], Array]
Figures = dict[str, dict[int, int]]


def measure() -> Figures:
    of_kernel, of_inputs, of_state = jax.random.split(jax.random.key(0), 3)
    kernel = jax.random.normal(of_kernel, (KERNEL, WIDTH, WIDTH))
    inputs = jax.random.normal(of_inputs, (WIDTH, WIDTH))
    state = jax.random.normal(of_state, (WIDTH, WIDTH))

    def one_step(x: Array) -> Array:
        """Computes each new state from the state before, as one of n sequential steps does."""
        before = jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]
        return jnp.tanh(x @ inputs + before @ state)

    layers: dict[str, Layer] = {
        "self-attention, layers": lambda x: layer_types.self_attention(x, num_heads=1),
        f"convolution of width {KERNEL}, layers": lambda x: layer_types.convolutional(x, kernel),
        "recurrence, steps": one_step,
    }
    found: Figures = {}
    for name, layer in layers.items():
        one = dependence(layer, max(LENGTHS))
        # The first n outputs depend on the first n inputs in the same way.
        found[name] = {n: repetitions(one[:n, :n]) for n in LENGTHS}

    dilated = found["dilated convolution, layers"] = {}
    for n in LENGTHS:
        dilated[n] = dilated_repetitions(n)
    return found


def dependence(layer: Layer, length: int) -> Bool[np.ndarray, "T T"]:
    """Returns which outputs have a derivative to which inputs."""
    x = jax.random.normal(jax.random.key(1), (1, length, WIDTH))

    def output(x: Array) -> Array:
        return layer(x)[0].sum(axis=-1)

    jacobian = jax.jit(jax.jacrev(output))(x)  # [T, 1, T, D]
    return np.abs(np.asarray(jacobian))[:, 0].max(axis=-1) > 0


def repetitions(one: Bool[np.ndarray, "T T"]) -> int:
    """Returns how often a layer must be repeated, until the last output sees the first input."""
    reached = one
    for count in range(1, len(one) + 1):
        if reached[-1, 0]:
            return count
        reached = reached @ one
    raise AssertionError("the last output never depends on the first input")


def dilated_repetitions(length: int) -> int:
    """Returns the layers of convolutions whose dilation grows by the factor ``KERNEL``."""
    reach = 0
    count = 0
    while reach < length - 1:
        reach += KERNEL // 2 * KERNEL**count
        count += 1
    return count


def report(figures: Figures) -> str:
    rows = []
    for name, counts in figures.items():
        rows.append([name, *map(str, counts.values())])
    table = markdown_table(["positions", *map(str, LENGTHS)], rows)
    return (
        "Smallest number of layers, or of sequential steps of one layer, after which the last "
        "output has a derivative to the first input; with dilation, by the receptive field.\n\n"
        + table
    )


def draw(figures: Figures, path: pathlib.Path) -> None:
    title = "Until the last output depends on the first input"
    panel = Panel(title, "positions", figures, log_x=2, log_y=True)
    draw_panels([panel], path)


CLAIM = Claim(
    name="paths",
    place=70,
    says="Attention connects any two positions in one step, recurrence and convolution do not.",
    measure=measure,
    report=report,
    draw=draw,
)
