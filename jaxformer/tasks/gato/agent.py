"""A trained multi-task agent: captions of pictures, and episodes of control."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree, UInt8

from jaxformer.data import cart_pole
from jaxformer.data.episodes import ACTION
from jaxformer.data.mu_law import mu_law, to_bins
from jaxformer.errors import UserError
from jaxformer.inference.weights import Predictor
from jaxformer.kinds.gato import GATO
from jaxformer.layout import global_mesh
from jaxformer.models.gato import Gato, GatoConfig
from jaxformer.models.stepwise import unstacked_variables
from jaxformer.nn.stack import StackCache
from jaxformer.tasks.gato.captions import write_captions


class Agent(Predictor):
    """Plays episodes and writes captions; ``Generator`` continues texts with the same model.

    >>> agent = Agent.load("runs/gato")  # doctest: +SKIP
    >>> agent.captions(pictures)  # doctest: +SKIP
    ['seven', 'two']
    """

    kinds = (GATO,)

    def captions(self, pictures: UInt8[np.ndarray, "N Y X C"]) -> list[str]:
        """Returns the best caption of each picture, or the first sample, by ``config.search``.

        Raises:
          UserError: Pictures are not uint8, or of another size than in training.
        """
        pictures = np.asarray(pictures)
        model: Any = self.config.model
        has_dtype = pictures.dtype == np.uint8
        has_shape = pictures.shape[1:] == model.image_shape
        if not has_dtype or not has_shape or not len(pictures):
            sizes = ", ".join(str(size) for size in model.image_shape)
            raise UserError(
                f"expected pictures, uint8 [N, {sizes}], got "
                f"{pictures.dtype} {list(pictures.shape)}"
            )

        found = write_captions(model, self.params, pictures, search=self.config.search)
        return [self.tokenizer.decode(tokens) for tokens in found]

    def play(self, states: Float[np.ndarray, "N 4"], longest: int = cart_pole.LONGEST) -> "Played":
        """Balances the pole from each first state, by the most probable actions.

        Raises:
          UserError: The timesteps take more than ``model.max_length`` items, without a window.
        """
        model: Any = self.config.model
        most_timesteps = model.max_length // _ITEMS_PER_TIMESTEP
        if longest < 1:
            raise UserError(f"expected at least 1 timestep, got {longest}")
        if model.window is None and longest > most_timesteps:
            raise UserError(
                f"expected at most {most_timesteps} timesteps, of "
                f"model.max_length={model.max_length} items, got {longest}; train with "
                "model.window, which allows any number"
            )

        first_states = np.asarray(states, np.float32)
        return play_episodes(model, self.params, first_states, longest=longest)


class Played(NamedTuple):
    """Episodes that a model played.

    Attributes:
      states: The state before each timestep; after an episode's end, any state.
      returns: Number of timesteps of each episode, since a timestep has the reward 1.
    """

    states: Float[np.ndarray, "N T 4"]
    returns: Int[np.ndarray, " N"]


_OBSERVED = 4  # tokens of a state
_ITEMS_PER_TIMESTEP = _OBSERVED + 2  # with the separator and the action
# Local positions of a state and the separator.
_POSITIONS = np.array([*range(_OBSERVED), ACTION], np.int32)


@global_mesh(None)
def play_episodes(
    config: GatoConfig,
    params: PyTree,
    states: Float[np.ndarray, "N 4"],
    longest: int,
) -> Played:
    """Returns episodes from first states, all in one program."""
    all_states, returns = _play(config, longest, params, states)
    return Played(
        states=np.asarray(all_states),
        returns=np.asarray(returns),
    )


class _Timestep(NamedTuple):
    """The simulator and the model between two timesteps."""

    states: Float[Array, "N 4"]
    cache: StackCache
    is_running: Bool[Array, " N"]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _play(
    config: GatoConfig,
    longest: int,
    params: PyTree,
    states: Float[Array, "N 4"],
) -> tuple[Float[Array, "N T 4"], Int[Array, " N"]]:
    """Runs the model and the simulator in one scan, an iteration for each timestep."""
    model = Gato(config)
    variables = unstacked_variables(params)
    capacity = longest * _ITEMS_PER_TIMESTEP
    cache: Any = model.apply(variables, states, capacity=capacity, method="start")

    # Only the actions are candidates of the next token.
    actions = jnp.arange(cart_pole.NUM_ACTIONS)
    output = model.apply(variables, actions, method="candidate_output")

    def feed(
        cache: StackCache,
        item: tuple[Int[Array, " N"], Int[Array, ""]],
    ) -> tuple[StackCache, Float[Array, "N A"]]:
        tokens, position = item
        applied: Any = model.apply(
            variables,
            tokens[:, None],
            position,
            cache,
            output,
            method="step_at",
        )

        logits, new_cache = applied  # [N, 1, A]
        return new_cache, logits[:, 0]

    def timestep(now: _Timestep, _: Any) -> tuple[_Timestep, tuple[Array, Array]]:
        # The model reads the four numbers of a state and the separator, one after another.
        compressed = mu_law(now.states)
        bins = config.ids.first_bin + to_bins(compressed)  # [N, 4]
        separators = jnp.full_like(bins[:, :1], config.ids.separator)
        observed = jnp.concatenate([bins, separators], axis=1).T  # [5, N]
        positions = jnp.asarray(_POSITIONS)
        cache, logits = jax.lax.scan(feed, now.cache, (observed, positions))  # [5, N, A]

        # The item after the separator is the action, which the model then sees.
        at_separator = logits[-1]
        chosen = at_separator.argmax(axis=-1).astype(jnp.int32)
        cache, _ = feed(cache, (chosen, jnp.int32(ACTION)))

        states = cart_pole.step(now.states, chosen)
        is_running = now.is_running & ~cart_pole.has_failed(states)
        after = _Timestep(states, cache, is_running)
        return after, (now.states, now.is_running)

    is_running = jnp.ones(len(states), bool)
    first = _Timestep(states, cache, is_running)
    _, (seen, was_running) = jax.lax.scan(timestep, first, length=longest)
    return seen.swapaxes(0, 1), was_running.sum(axis=0)


def describe_returns(returns: Sequence[int] | Int[np.ndarray, " N"]) -> str:
    """Formats the mean of returns, with its 95 % interval over resampled episodes."""
    values = np.asarray(returns)
    count = len(values)
    generator = np.random.default_rng(0)
    draws = generator.integers(0, count, size=(1000, count))
    means = values[draws].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return f"{values.mean():.1f} ({low:.1f} to {high:.1f})"
