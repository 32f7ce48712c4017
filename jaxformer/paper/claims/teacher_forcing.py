"""One pass over a sentence compared with one pass for each of its beginnings."""

import pathlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PyTree

from jaxformer.models import LanguageModel
from jaxformer.models.assembly import ModelConfig
from jaxformer.paper.claims.charts import Panel, draw_panels
from jaxformer.paper.claims.claim import Claim
from jaxformer.paper.table_commands import markdown_table

VOCABULARY = 50
LENGTHS = (5, 10, 20, 40)

MODEL = LanguageModel(
    ModelConfig(vocab_size=VOCABULARY, d_model=64, d_ff=128, num_heads=4, num_layers=2)
)


class Comparison(NamedTuple):
    """A sentence in one pass, and as one row for each of its tokens."""

    loss: float  # of one pass
    loss_error: float  # relative difference of the losses
    gradient_error: float  # largest relative difference of the gradients' norms
    tokens: int  # that one pass computes
    tokens_of_branches: int


Figures = dict[int, Comparison]


def measure() -> Figures:
    return {length: compare(length) for length in LENGTHS}


def compare(length: int) -> Comparison:
    """Compares losses and gradients of random parameters for a random sentence."""
    rng = np.random.default_rng(length)
    sentence = rng.integers(3, VOCABULARY, length + 1).astype(np.int32)
    losses, gradients = jax.device_get(both_ways(sentence))
    one, branches = losses
    gradient, other = map(_as_vector, gradients)
    return Comparison(
        loss=float(one),
        loss_error=float(abs(one - branches) / one),
        gradient_error=float(np.linalg.norm(gradient - other) / np.linalg.norm(gradient)),
        tokens=length,
        tokens_of_branches=length * (length + 1) // 2,
    )


@jax.jit
def both_ways(sentence: Int[Array, " T"]) -> tuple[tuple[Array, Array], tuple[PyTree, PyTree]]:
    """Computes the losses, and the gradients, of one pass and of branches."""
    params = MODEL.init(jax.random.key(0), sentence[None, :-1])["params"]
    one, gradient = jax.value_and_grad(loss_of_one_pass)(params, sentence)
    branches, other = jax.value_and_grad(loss_of_branches)(params, sentence)
    return (one, branches), (gradient, other)


def _as_vector(tree: PyTree) -> Float[np.ndarray, " N"]:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def loss_of_one_pass(params: PyTree, sentence: Int[Array, " T"]) -> Float[Array, ""]:
    """Computes the mean loss of all tokens, where each sees the true tokens before it."""
    logits = MODEL.apply({"params": params}, sentence[None, :-1])[0]
    return optax.softmax_cross_entropy_with_integer_labels(logits, sentence[1:]).mean()


def loss_of_branches(params: PyTree, sentence: Int[Array, " T"]) -> Float[Array, ""]:
    """Computes the same of a row for each beginning of the sentence, which predicts one token."""
    length = len(sentence) - 1
    last = jnp.arange(length)
    is_past = jnp.arange(length) <= last[:, None]
    rows = jnp.where(is_past, sentence[:-1], 0)  # [T, T]; 0 is padding

    logits = jnp.asarray(MODEL.apply({"params": params}, rows, segments=is_past.astype(jnp.int32)))
    of_last = logits[last, last]
    return optax.softmax_cross_entropy_with_integer_labels(of_last, sentence[1:]).mean()


def report(figures: Figures) -> str:
    rows = []
    for length, found in figures.items():
        rows.append(
            [
                str(length),
                f"{found.loss:.4f}",
                _error(found.loss_error),
                _error(found.gradient_error),
                str(found.tokens),
                str(found.tokens_of_branches),
            ]
        )
    header = [
        "words",
        "loss of one pass",
        "loss of branches differs by",
        "gradient differs by",
        "tokens of one pass",
        "tokens of branches",
    ]
    return (
        "A decoder of two layers with random parameters. One pass over a sentence, and one row for "
        "each of its beginnings, which predicts the next word. Differences are relative, float32."
        f"\n\n{markdown_table(header, rows)}"
    )


def _error(value: float) -> str:
    return "less than 1e-5" if value < 1e-5 else f"{value:.0e}"


def draw(figures: Figures, path: pathlib.Path) -> None:
    lines = {
        "one row for each beginning": {n: found.tokens_of_branches for n, found in figures.items()},
        "one pass": {n: found.tokens for n, found in figures.items()},
    }
    panel = Panel("Tokens to compute", "words of the sentence", lines, log_x=2, log_y=True)
    draw_panels([panel], path)


CLAIM = Claim(
    name="teacher_forcing",
    place=100,
    says="Teacher forcing trains on a sentence of five words as on five examples, in one pass.",
    measure=measure,
    report=report,
    draw=draw,
)
