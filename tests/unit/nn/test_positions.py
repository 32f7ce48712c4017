"""Sinusoids against values computed by hand, and the property that section 3.5 chose them for."""

import math

import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.nn.positions import sinusoidal_positions


@pytest.mark.parametrize(("position", "i"), [(0, 0), (1, 0), (3, 1), (100, 7), (4999, 255)])
def test_formula(position, i):
    table = sinusoidal_positions(5000, 512)
    angle = position / 10000 ** (2 * i / 512)
    assert table[position, 2 * i] == pytest.approx(math.sin(angle), abs=1e-6)
    assert table[position, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-6)


def test_hand_computed_values():
    # d_model 4: frequencies 1 and 1/100.
    expected = [0.909297, -0.416147, 0.019999, 0.999800]  # sin 2, cos 2, sin 0.02, cos 0.02
    np.testing.assert_allclose(sinusoidal_positions(3, 4)[2], expected, atol=1e-6)


def test_an_offset_is_a_linear_function():
    # "for any fixed offset k, PE(pos+k) can be represented as a linear function of PE(pos)"
    table = sinusoidal_positions(200, 16).astype(np.float64)
    solution, *_ = np.linalg.lstsq(table[:-7], table[7:], rcond=None)
    np.testing.assert_allclose(table[:-7] @ solution, table[7:], atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((4, 5), "d_model must be even, .*: got 5; use 6"),
        ((4, 0), "d_model must be even, .*: got 0; use 2"),
        ((-1, 4), "length must be 0 or more: got -1"),
    ],
)
def test_sizes_without_a_table_are_refused(arguments, words):
    with pytest.raises(UserError, match=words):
        sinusoidal_positions(*arguments)


def test_no_positions():
    assert sinusoidal_positions(0, 6).shape == (0, 6)
