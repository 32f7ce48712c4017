"""Outputs of a stack for a sentence and for the same characters in another order."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxformer.nn import Block, FeedForward, Keys, MultiHeadAttention, Stack, sinusoidal_positions
from jaxformer.paper.claims.charts import Panel, draw_panels
from jaxformer.paper.claims.claim import Claim, digits
from jaxformer.paper.table_commands import markdown_table

WIDTH = 64
SEEDS = 20
SENTENCE = "猫坐在垫子上"  # the cat sits on the mat
OTHER = "垫子坐在猫上"  # the mat sits on the cat

STACKS = (
    "encoder, no positions",
    "encoder, sinusoids",
    "decoder, no positions",
)
# By stack, the distance of each character's vectors in both sentences, relative to their length.
Figures = dict[str, Float[np.ndarray, "seeds T"]]


def measure() -> Figures:
    order = [SENTENCE.index(character) for character in OTHER]
    distances = jax.jit(jax.vmap(distances_of_seed, in_axes=(0, None)))(
        jnp.arange(SEEDS), jnp.array(order)
    )
    found = jax.device_get(distances)
    return {name: found[name] for name in STACKS}


def distances_of_seed(seed: Array, order: Array) -> dict[str, Float[Array, " T"]]:
    """Compares the outputs of random stacks for random embeddings and for a permutation."""
    of_embeddings, of_stack = jax.random.split(jax.random.key(seed))
    length = len(SENTENCE)
    x = jax.random.normal(of_embeddings, (1, length, WIDTH))
    positions = jnp.asarray(sinusoidal_positions(length, WIDTH))

    stack = Stack(Block(MultiHeadAttention(4), FeedForward(4 * WIDTH)), num_layers=2)
    params = stack.init(of_stack, x)

    def distances(positions: Array, causal: bool) -> Array:
        keys = Keys.of_sequence(length, causal=causal)
        first = stack.apply(params, x + positions, keys)[0]
        second = stack.apply(params, x[:, order] + positions, keys)[0]
        difference = jnp.linalg.norm(first[order] - second, axis=-1)
        return difference / jnp.linalg.norm(second, axis=-1)

    found = (
        distances(jnp.zeros_like(positions), causal=False),
        distances(positions, causal=False),
        distances(jnp.zeros_like(positions), causal=True),
    )
    return dict(zip(STACKS, found, strict=True))


def report(figures: Figures) -> str:
    rows = []
    for name, distances in figures.items():
        means = distances.mean(axis=0)
        rows.append([name, *(_cell(value) for value in means)])
    table = markdown_table(["character", *OTHER], rows)
    return (
        f"{SENTENCE} and {OTHER}: distance between the two vectors of the same character, relative "
        f"to their length; two random layers, means of {SEEDS} seeds.\n\n{table}"
    )


def _cell(value: float) -> str:
    return "below 1e-6" if value < 1e-6 else digits(float(value))


def draw(figures: Figures, path: pathlib.Path) -> None:
    lines = {}
    for name, distances in figures.items():
        means = distances.mean(axis=0).tolist()
        lines[name] = dict(enumerate(means, start=1))
    label = "place of the character in the second sentence"
    draw_panels([Panel("Relative distance of the same character", label, lines)], path)


CLAIM = Claim(
    name="order",
    place=60,
    says="Without positions, the Transformer cannot tell two orders of the same words apart.",
    measure=measure,
    report=report,
    draw=draw,
)
