"""Sinusoids against values computed by hand, and the linearity that section 3.5 chose them for."""

import functools
import math
import typing

import jax
import numpy as np
import pytest

from jaxformer.config import ModelConfig
from jaxformer.errors import UserError
from jaxformer.nn import positions
from jaxformer.nn.positions import rotary_positions, sinusoidal_positions


@pytest.mark.parametrize(("position", "i"), [(0, 0), (1, 0), (3, 1), (100, 7), (4999, 255)])
def test_formula(position, i):
    table = sinusoidal_positions(5000, 512)
    angle = position / 10000 ** (2 * i / 512)
    assert table[position, 2 * i] == pytest.approx(math.sin(angle), abs=1e-6)
    assert table[position, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-6)


def test_offset_is_a_linear_function():
    # "for any fixed offset k, PE(pos+k) can be represented as a linear function of PE(pos)"
    table = sinusoidal_positions(200, 16).astype(np.float64)
    solution, *_ = np.linalg.lstsq(table[:-7], table[7:], rcond=None)
    np.testing.assert_allclose(table[:-7] @ solution, table[7:], atol=1e-5)


def test_odd_width_is_refused():
    with pytest.raises(UserError, match=r"d_model must be even, .*: got 5; use 6"):
        sinusoidal_positions(4, 5)


@pytest.mark.parametrize("base", [500.0, 10_000.0])
def test_rotary_positions_multiply_by_unit_complex_numbers(base):
    rng = np.random.default_rng(0)
    heads = rng.normal(size=(2, 5, 3, 8)).astype("float32")
    positions = rng.integers(0, 1000, size=(2, 5))
    points = heads[..., :4] + 1j * heads[..., 4:]
    turns = np.exp(1j * positions[..., None] * base ** (-np.arange(0, 8, 2) / 8))
    expected = points * turns[:, :, None]
    found = np.asarray(jax.jit(functools.partial(rotary_positions, base=base))(heads, positions))
    np.testing.assert_allclose(found[..., :4] + 1j * found[..., 4:], expected, atol=3e-4)


def test_rotary_positions_need_an_even_size():
    with pytest.raises(UserError, match="expected an even size of a head, d_k, got 3"):
        jax.eval_shape(rotary_positions, np.ones((1, 2, 2, 3), np.float32), np.arange(2)[None])
    with pytest.raises(UserError, match=r"the size of a head, model\.d_k, must be even.* got 3"):
        ModelConfig(d_model=12, num_heads=4, positions="rotary")


def test_every_value_of_the_config_is_an_encoding():
    assert tuple(positions.ENCODINGS) == typing.get_args(positions.Positions)
