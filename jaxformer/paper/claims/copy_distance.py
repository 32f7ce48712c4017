"""Accuracy of repeating a token at a distance: attention, a recurrence and convolutions."""

from collections.abc import Callable

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from jaxformer.paper.claims.small_runs import RIGHT, Experiment, Setting
from jaxformer.paper.claims.small_tasks import Echo, decoder

DISTANCES = (2, 8, 16, 32)
# Places of a row at which a token is to be repeated, at each distance.
SCORED = 16
WIDTH = 32
KERNEL = 3


class Recurrent(nn.Module):
    """One layer of a GRU.

    Attributes:
      vocab_size: Number of tokens.
      size: Number of units of a state.
    """

    vocab_size: int
    size: int

    @nn.compact
    def __call__(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T V"]:
        x = nn.Embed(self.vocab_size, WIDTH)(tokens)
        states = nn.RNN(nn.GRUCell(self.size))(x)
        return nn.Dense(self.vocab_size)(states)


class Convolutional(nn.Module):
    """Causal convolutions, with a residual connection around each.

    Attributes:
      vocab_size: Number of tokens.
      size: Width of the layers.
      dilations: Distance of the places that a kernel reads, for each layer.
    """

    vocab_size: int
    size: int
    dilations: tuple[int, ...]

    @nn.compact
    def __call__(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T V"]:
        x = nn.Embed(self.vocab_size, self.size)(tokens)
        for dilation in self.dilations:
            normed = nn.LayerNorm()(x)
            seen = [delay(normed, place * dilation) for place in range(KERNEL)]
            x += nn.Dense(self.size)(nn.relu(jnp.concatenate(seen, axis=-1)))
        return nn.Dense(self.vocab_size)(x)


def delay(x: Float[Array, "B T D"], places: int) -> Float[Array, "B T D"]:
    """Returns the vectors a number of places before, and zeros where there are none."""
    return jnp.pad(x, ((0, 0), (places, 0), (0, 0)))[:, : x.shape[1]]


def setting(network: nn.Module, task: Echo, rows: int = 16) -> Setting:
    return Setting(
        network=network,
        task=task,
        steps=600,
        rows=rows,
        learning_rate=3e-3,
        warmup=50,
    )


def by_distance(make_network: Callable[[Echo], nn.Module]) -> dict[int, Setting]:
    settings = {}
    for distance in DISTANCES:
        task = Echo(delay=distance, length=distance + SCORED)
        settings[distance] = setting(make_network(task), task)
    return settings


def recurrent(task: Echo) -> Recurrent:
    return Recurrent(task.vocab_size, size=72)


def last_of_row(rows: int) -> dict[int, Setting]:
    """Returns the training of recurrent networks that repeat only the first token, at the end."""
    settings = {}
    for distance in DISTANCES:
        task = Echo(delay=distance, length=distance + 1)
        settings[distance] = setting(recurrent(task), task, rows)
    return settings


SETTINGS = {
    "attention, 2 layers": by_distance(decoder),
    "convolution, 2 layers": by_distance(
        lambda task: Convolutional(task.vocab_size, size=64, dilations=(1, 1))
    ),
    "dilated convolution, 4 layers": by_distance(
        lambda task: Convolutional(task.vocab_size, size=44, dilations=(1, 3, 9, 27))
    ),
    "GRU": by_distance(recurrent),
    "GRU, one token per row": last_of_row(rows=64),
}

CLAIM = Experiment(
    about=(
        f"Networks of 24,000 to 28,000 parameters learn to repeat the token a distance before, in "
        f"rows of random tokens of {Echo.vocab_size}, at {SCORED} places of each row; guessing "
        f"gives {100 / Echo.vocab_size:.0f}. {SETTINGS['GRU'][2].describe()}; in the last line "
        f"64 rows, which end at the first place to repeat."
    ),
    x_label="distance",
    column="distance {}",
    settings=SETTINGS,
    measures=[RIGHT],
).as_claim(
    "copy_distance",
    place=75,
    says="Attention copies from any distance; recurrence forgets, convolutions need depth.",
)
