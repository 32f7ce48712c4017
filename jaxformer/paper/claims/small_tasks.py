"""Tasks that small networks learn in seconds, and the decoder that learns them."""

import dataclasses
import functools
from pydoc_data.topics import topics
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxformer.models import LanguageModel
from jaxformer.models.assembly import ModelConfig
from jaxformer.nn.rematerialization import Remat
from jaxformer.paper.claims.small_runs import Batch, Setting

# Characters of the text that are only for tests.
_TEST_SIZE = 16_384


@dataclasses.dataclass(frozen=True)
class Echo:
    """Repeat the token that was read a number of places before, in rows of random tokens."""

    delay: int = 1
    length: int = 16
    vocab_size: int = 16

    def train_rows(self, key: Array, rows: int) -> Batch:
        tokens = jax.random.randint(key, (rows, self.length), 0, self.vocab_size)
        targets = jnp.roll(tokens, self.delay, axis=1)
        # The first places have nothing to repeat.
        is_scored = jnp.arange(self.length) >= self.delay
        return Batch(tokens, targets, jnp.broadcast_to(is_scored, tokens.shape))

    def test_rows(self) -> Batch:
        return self.train_rows(jax.random.key(1000), rows=128)


@dataclasses.dataclass(frozen=True)
class Sums:
    """Continue rows in which each digit is the sum of a number of digits before, modulo 10."""

    terms: int = 3
    length: int = 16
    vocab_size: int = 10

    def train_rows(self, key: Array, rows: int) -> Batch:
        first = jax.random.randint(key, (rows, self.terms), 0, self.vocab_size)

        def next_digit(before: Array, _: None) -> tuple[Array, Array]:
            digit = before.sum(axis=1, keepdims=True) % self.vocab_size
            return jnp.concatenate([before[:, 1:], digit], axis=1), digit[:, 0]

        _, others = jax.lax.scan(next_digit, first, length=self.length + 1 - self.terms)
        digits = jnp.concatenate([first, others.T], axis=1)

        tokens = digits[:, :-1]
        # The first digits are random.
        is_scored = jnp.arange(self.length) >= self.terms - 1
        return Batch(tokens, digits[:, 1:], jnp.broadcast_to(is_scored, tokens.shape))

    def test_rows(self) -> Batch:
        return self.train_rows(jax.random.key(1000), rows=128)


@dataclasses.dataclass(frozen=True)
class Text:
    """Predict the next character of the help topics that come with Python.

    Attributes:
      train_size: Number of characters to train on.
      length: Number of characters in a row.
    """

    train_size: int = 300_000
    length: int = 32
    vocab_size: int = 128  # ASCII

    def train_rows(self, key: Array, rows: int) -> Batch:
        text = jnp.asarray(read_topics().train[: self.train_size])
        starts = jax.random.randint(key, (rows,), 0, len(text) - self.length)
        return _next_characters(text[starts[:, None] + jnp.arange(self.length + 1)])

    def test_rows(self) -> Batch:
        text = read_topics().test
        rows = len(text) // (self.length + 1)
        text = jnp.asarray(text[: rows * (self.length + 1)])
        return _next_characters(text.reshape(rows, self.length + 1))


class Topics(NamedTuple):
    """Two parts of a text, without common paragraphs."""

    train: Int[np.ndarray, " N"]
    test: Int[np.ndarray, " M"]


@functools.cache
def read_topics() -> Topics:
    """Returns the distinct paragraphs of Python's help topics, in random order."""
    paragraphs = []
    for _, topic in sorted(topics.items()):
        paragraphs += topic.strip().split("\n\n")

    # Larger topics repeat smaller ones.
    distinct = list(dict.fromkeys(paragraphs))
    np.random.default_rng(0).shuffle(distinct)
    text = "\n\n".join(distinct).encode("ascii", errors="replace")

    characters = np.frombuffer(text, np.uint8).astype(np.int32)
    return Topics(train=characters[_TEST_SIZE:], test=characters[:_TEST_SIZE])


def _next_characters(characters: Int[Array, "B T"]) -> Batch:
    tokens = characters[:, :-1]
    return Batch(tokens, characters[:, 1:], jnp.ones(tokens.shape, bool))


def decoder(task: Echo | Sums | Text, remat: Remat = "none", **changes: Any) -> LanguageModel:
    """Returns a small decoder for a task, with other settings of the model where given."""
    config = ModelConfig(
        vocab_size=task.vocab_size,
        d_model=32,
        d_ff=128,
        num_heads=4,
        num_layers=2,
        dropout_rate=0.0,
        norm_position="pre",
        max_length=task.length,
    )
    return LanguageModel(dataclasses.replace(config, **changes), remat=remat)


def text_setting(task: Text | None = None, **changes: Any) -> Setting:
    """Returns the training of a small decoder on a text.

    Args:
      task: The text; a long one when None.
      changes: Other settings of the model.
    """
    task = task or Text()
    return Setting(
        network=decoder(task, **changes),
        task=task,
        steps=600,
        learning_rate=3e-3,
        warmup=50,
    )


ABOUT_TEXT = (
    "Decoders predict the next character of the help topics that come with Python, in rows of "
    f"{Text.length}; two layers, d_model = 32, 4 heads, d_ff = 128, ReLU where nothing else is "
    f"said; {text_setting().describe()}."
)
