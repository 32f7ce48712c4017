"""The physics of the cart and its pole, against Gymnasium and by hand, and its controller."""

import json
import math
import pathlib

import jax
import numpy as np

from jaxformer.data import cart_pole

FIXTURE = pathlib.Path(__file__).parents[2] / "fixtures" / "cart_pole.json"


def test_steps_and_ends_are_gymnasium_s():
    for episode in json.loads(FIXTURE.read_text())["episodes"]:
        states = np.array(episode["states"])
        actions = np.array(episode["actions"])
        found = cart_pole.step(states[:-1], actions)
        np.testing.assert_allclose(found, states[1:], rtol=1e-12, atol=1e-15)

        failed = cart_pole.has_failed(states)
        assert failed.tolist() == [False] * len(actions) + [True]


def test_a_step_from_rest_by_hand():
    # An upright pole at rest: the push over both masses, less what the pole's inertia takes.
    push = 10 / 1.1
    turn = -push / (0.5 * (4 / 3 - 0.1 / 1.1))
    shift = push - 0.05 * turn / 1.1

    found = cart_pole.step(np.zeros(4), 1)
    np.testing.assert_allclose(found, [0, 0.02 * shift, 0, 0.02 * turn])
    np.testing.assert_allclose(cart_pole.step(np.zeros(4), 0), -found)


def test_both_array_libraries_agree():
    states = cart_pole.first_states(0, 5).astype(np.float32)
    actions = cart_pole.control(states)
    found = jax.jit(lambda x: cart_pole.step(x, cart_pole.control(x)))(states)
    np.testing.assert_allclose(found, cart_pole.step(states, actions), rtol=1e-5, atol=1e-7)


def test_the_limits_are_degrees_and_meters():
    angle = math.radians(12)
    states = np.zeros((4, 4))
    states[:, 2] = [angle - 1e-6, angle + 1e-6, 0, 0]
    states[:, 0] = [0, 0, -2.4 + 1e-6, -2.4 - 1e-6]
    assert cart_pole.has_failed(states).tolist() == [False, True, False, True]


def test_the_controller_balances_and_chance_does_not():
    generator = np.random.default_rng(0)
    for episode in cart_pole.play(cart_pole.first_states(3, 5), 0.0, generator):
        assert len(episode.actions) == 500

    starts = cart_pole.first_states(4, 20)
    played = cart_pole.play(starts, 1.0, generator)
    assert np.mean([len(episode.actions) for episode in played]) < 60
    for start, episode in zip(starts, played, strict=True):
        np.testing.assert_array_equal(episode.states[0], start)
        np.testing.assert_array_equal(episode.actions, cart_pole.control(episode.states))
        assert not cart_pole.has_failed(episode.states).any()


def test_first_states_depend_on_their_number_only():
    few = cart_pole.first_states(7, 2)
    np.testing.assert_array_equal(cart_pole.first_states(7, 4)[:2], few)
    assert abs(few).max() <= 0.05
