"""Accuracy beyond the length of the training texts, by positional encoding.

A decoder learns to repeat the token that it read a few places before, in short rows, and is tested
in longer ones.
"""

import pathlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PyTree

from jaxformer.models import LanguageModel
from jaxformer.models.assembly import ModelConfig
from jaxformer.nn.positions import Positions
from jaxformer.paper.claims.charts import Panel, draw_panels
from jaxformer.paper.claims.claim import Claim
from jaxformer.paper.table_commands import markdown_table

TOKENS = 16
DELAY = 3
LENGTH = 16
ROWS = 32
STEPS = 400
LEARNING_RATE = 3e-3
SEEDS = 3
TESTED = 64
PLACES = (16, 24, 32, 48, 64)

NAMES: dict[str, Positions] = {
    "sinusoids": "sinusoidal",
    "rotary": "rotary",
    "ALiBi": "alibi",
    "T5's learned biases": "relative",
}
# By encoding, the fraction of right tokens at each place from 1 on, for each seed.
Figures = dict[str, Float[np.ndarray, "seeds places"]]


def measure() -> Figures:
    found = {}
    for name, positions in NAMES.items():
        train = jax.jit(jax.vmap(train_function(positions, STEPS)))
        found[name] = np.asarray(train(jnp.arange(SEEDS)))
    return found


def train_function(positions: Positions, steps: int) -> Callable[[Array], Float[Array, " places"]]:
    """Returns a function that trains with a seed, and tests each place of longer rows."""
    model = LanguageModel(
        ModelConfig(
            vocab_size=TOKENS,
            d_model=32,
            d_ff=64,
            num_heads=4,
            num_layers=2,
            dropout_rate=0.0,
            norm_position="pre",
            positions=positions,
            max_length=TESTED,
        )
    )
    optimizer = optax.adam(LEARNING_RATE)

    def logits(params: PyTree, tokens: Array) -> Array:
        return jnp.asarray(model.apply({"params": params}, tokens))

    def loss(params: PyTree, tokens: Array) -> Array:
        targets = tokens[:, :-DELAY]
        found = logits(params, tokens)[:, DELAY:]
        return optax.softmax_cross_entropy_with_integer_labels(found, targets).mean()

    def train(seed: Array) -> Float[Array, " places"]:
        of_params, of_data, of_test = jax.random.split(jax.random.key(seed), 3)

        def step(state: tuple, number: Array) -> tuple[tuple, None]:
            params, optimizer_state = state
            tokens = random_rows(jax.random.fold_in(of_data, number), ROWS, LENGTH)
            gradient = jax.grad(loss)(params, tokens)
            updates, optimizer_state = optimizer.update(gradient, optimizer_state)
            return (optax.apply_updates(params, updates), optimizer_state), None

        params = model.init(of_params, random_rows(of_data, 1, LENGTH))["params"]
        state = (params, optimizer.init(params))
        (params, _), _ = jax.lax.scan(step, state, jnp.arange(steps))

        tokens = random_rows(of_test, 8 * ROWS, TESTED)
        is_right = logits(params, tokens)[:, DELAY:].argmax(axis=-1) == tokens[:, :-DELAY]
        return jnp.pad(is_right.mean(axis=0), (DELAY, 0))

    return train


def random_rows(key: Array, rows: int, length: int) -> Array:
    return jax.random.randint(key, (rows, length), 0, TOKENS)


def report(figures: Figures) -> str:
    rows = []
    for name, right in figures.items():
        cells = []
        for place in PLACES:
            lowest, median, highest = 100 * np.sort(right[:, place - 1])[[0, SEEDS // 2, -1]]
            cells.append(f"{median:.0f} ({lowest:.0f} to {highest:.0f})")
        rows.append([name, *cells])

    table = markdown_table(["right tokens, %", *(f"place {place}" for place in PLACES)], rows)
    return (
        f"Decoders of two layers, d_model = 32, learn to repeat the token {DELAY} places before, "
        f"in rows of {LENGTH} random tokens of {TOKENS}: {STEPS} steps of {ROWS} rows, Adam with a "
        f"learning rate of {LEARNING_RATE:g}. Median of {SEEDS} seeds, with the lowest and the "
        f"highest; guessing gives {100 / TOKENS:.0f}.\n\n{table}"
    )


def draw(figures: Figures, path: pathlib.Path) -> None:
    lines = {}
    for name, right in figures.items():
        medians = 100 * np.median(right, axis=0)
        lines[name] = {place: medians[place - 1] for place in range(DELAY + 1, TESTED + 1)}
    title = f"Right tokens, %, after training on places 1 to {LENGTH}"
    draw_panels([Panel(title, "place", lines, markers=False)], path)


CLAIM = Claim(
    name="extrapolation",
    place=55,
    says="Sinusoids let a model read longer texts than in training.",
    measure=measure,
    report=report,
    draw=draw,
)
