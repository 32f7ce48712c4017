"""A pole that a cart balances (Barto, Sutton and Anderson 1983), and a controller that does it.

The equations, the numbers and the limits are as in Gymnasium's CartPole-v1. Functions take arrays
of NumPy or JAX. A state is [..., 4]: the position of the cart in m, its velocity, the angle of the
pole in radians, and its velocity.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

LONGEST = 500  # timesteps of an episode
NUM_ACTIONS = 2  # push to the left, or to the right

_GRAVITY = 9.8  # m / s^2
_CART_MASS = 1.0  # kg
_POLE_MASS = 0.1  # kg
_HALF_LENGTH = 0.5  # m, of the pole
_FORCE = 10.0  # N, of a push
_SECONDS = 0.02  # of a timestep
_FARTHEST = 2.4  # m, of the cart from the center
_STEEPEST = math.radians(12)  # of the pole
_START = 0.05  # largest absolute value of each number of a first state

# Weights of the state in the controller: it pushes toward the side to which their sum leans.
_CONTROLLER = np.array([0.05, 0.15, 1.0, 0.4])


class Episode(NamedTuple):
    """States and the actions that were chosen in them."""

    states: Float[np.ndarray, "T 4"]
    actions: Int[np.ndarray, " T"]


def step(state: Any, action: Any) -> Any:
    """Returns the state 0.02 seconds later, by Euler's method; action 1 pushes to the right."""
    xp = state.__array_namespace__()
    position = state[..., 0]
    velocity = state[..., 1]
    angle = state[..., 2]
    turn = state[..., 3]  # the velocity of the angle

    sine = xp.sin(angle)
    cosine = xp.cos(angle)
    direction = 2 * action - 1
    force = _FORCE * direction

    # Accelerations of the angle and of the cart.
    mass = _CART_MASS + _POLE_MASS
    pole_moment = _POLE_MASS * _HALF_LENGTH
    centrifugal = pole_moment * turn**2 * sine
    push = (force + centrifugal) / mass
    inertia = _HALF_LENGTH * (4 / 3 - _POLE_MASS * cosine**2 / mass)
    turn_change = (_GRAVITY * sine - cosine * push) / inertia
    velocity_change = push - pole_moment * turn_change * cosine / mass

    # Euler's method: all four change by their derivatives before the timestep.
    new_position = position + _SECONDS * velocity
    new_velocity = velocity + _SECONDS * velocity_change
    new_angle = angle + _SECONDS * turn
    new_turn = turn + _SECONDS * turn_change
    new_state = (
        new_position,
        new_velocity,
        new_angle,
        new_turn,
    )
    return xp.stack(new_state, axis=-1)


def has_failed(state: Any) -> Bool[Any, "..."]:
    """Returns whether the pole leans by more than 12 degrees, or the cart is 2.4 m away."""
    is_away = abs(state[..., 0]) > _FARTHEST
    leans = abs(state[..., 2]) > _STEEPEST
    return is_away | leans


def control(state: Any) -> Int[Any, "..."]:
    """Returns the action of a linear controller, which balances the pole."""
    xp = state.__array_namespace__()
    weights = xp.asarray(_CONTROLLER, state.dtype)
    lean = (state * weights).sum(axis=-1)
    is_to_right = lean > 0
    return is_to_right.astype("int32")


def first_states(seed: int, count: int) -> Float[np.ndarray, "N 4"]:
    """Returns first states; each depends only on the seed and its number."""
    states = []
    for number in range(count):
        generator = np.random.default_rng((seed, number))
        state = generator.uniform(-_START, _START, 4)
        states.append(state)
    return np.stack(states)


def play(
    states: Float[np.ndarray, "N 4"],
    noise: float,
    generator: np.random.Generator,
    longest: int = LONGEST,
) -> list[Episode]:
    """Returns an episode of the controller from each state, until the pole or the cart fails.

    Args:
      states: The first states.
      noise: Share of timesteps whose push is random; the action in an episode is the controller's.
      generator: Random numbers.
      longest: Most timesteps.
    """
    count = len(states)
    all_states = []
    all_actions = []
    lengths = np.zeros(count, int)
    is_running = np.ones(count, bool)

    # Episodes that have failed are simulated further; their lengths cut the rest off.
    for _ in range(longest):
        actions = control(states)
        all_states.append(states)
        all_actions.append(actions)
        lengths += is_running

        is_random = generator.random(count) < noise
        random_actions = generator.integers(NUM_ACTIONS, size=count)
        pushes = np.where(is_random, random_actions, actions)
        states = step(states, pushes)
        is_running &= ~has_failed(states)

    episodes = []
    for number, length in enumerate(lengths):
        own_states = [each[number] for each in all_states[:length]]
        own_actions = [each[number] for each in all_actions[:length]]
        episode = Episode(np.stack(own_states), np.stack(own_actions))
        episodes.append(episode)
    return episodes
