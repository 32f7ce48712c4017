"""Sinusoids and rotary positions against their formulas."""

import functools
import typing

import jax
import numpy as np
import pytest

from jaxformer.config import ModelConfig
from jaxformer.errors import UserError
from jaxformer.nn import positions
from jaxformer.nn.positions import (
    LinearScaling,
    Llama3Scaling,
    rotary_positions,
    sinusoidal_positions,
)

from .weights import normal


def test_formula():
    """Angles are position / 10000^(2 i / d_model), for i below d_model / 2."""
    table = sinusoidal_positions(5000, 512)

    wavelengths = 10000 ** (np.arange(256) / 256)
    angles = np.arange(5000)[:, None] / wavelengths
    np.testing.assert_allclose(table[:, 0::2], np.sin(angles), rtol=0, atol=1e-6)
    np.testing.assert_allclose(table[:, 1::2], np.cos(angles), rtol=0, atol=1e-6)


@pytest.mark.parametrize("base", [500.0, 10_000.0])
def test_rotary_positions_multiply_by_unit_complex_numbers(base):
    rng = np.random.default_rng(0)
    heads = normal(2, 5, 3, 8, seed=rng)  # [B, T, H, K]
    positions = rng.integers(0, 1000, size=(2, 5))

    rotate = jax.jit(functools.partial(rotary_positions, base=base))
    found = np.asarray(rotate(heads, positions))

    def as_complex(heads):
        return heads[..., :4] + 1j * heads[..., 4:]

    frequencies = base ** (-np.arange(0, 8, 2) / 8)
    turns = np.exp(1j * positions[..., None] * frequencies)  # [B, T, K / 2]
    expected = as_complex(heads) * turns[:, :, None]
    np.testing.assert_allclose(as_complex(found), expected, atol=3e-4)


def test_llama3_divides_frequencies_that_turn_rarely():
    """By its three cases, as the reference implementation of LLaMA 3.1 has them."""
    frequencies = 500.0 ** (-np.arange(0, 64, 2) / 64)
    expected = []
    for frequency in frequencies:
        turns = 100 * frequency / (2 * np.pi)
        if turns > 4:
            expected.append(frequency)
        elif turns < 1:
            expected.append(frequency / 8)
        else:
            weight = (turns - 1) / (4 - 1)
            expected.append((1 - weight) * frequency / 8 + weight * frequency)

    scaling = Llama3Scaling(8.0, low_turns=1.0, high_turns=4.0, original_length=100)
    np.testing.assert_allclose(scaling(frequencies), expected, rtol=1e-12)


def test_scaled_positions_are_rotary_positions_that_are_closer():
    heads = normal(2, 5, 3, 8)
    positions = np.arange(0, 20, 4)[None]

    scaled = functools.partial(rotary_positions, scaling=LinearScaling(4.0))
    found = jax.jit(scaled)(heads, positions)

    closer = jax.jit(rotary_positions)(heads, positions // 4)
    np.testing.assert_allclose(found, closer, atol=1e-5)


def test_rotary_positions_need_an_even_size():
    odd = np.ones((1, 2, 2, 3), np.float32)
    with pytest.raises(UserError, match="expected an even size of a head, d_k, got 3"):
        jax.eval_shape(rotary_positions, odd, np.arange(2)[None])

    with pytest.raises(UserError, match=r"the size of a head, model\.d_k, must be even.* got 3"):
        ModelConfig(d_model=12, num_heads=4, positions="rotary")


def test_every_value_of_the_config_is_an_encoding():
    assert tuple(positions.ENCODINGS) == typing.get_args(positions.Positions)
