"""Positions on a grid against brute force."""

import jax
import numpy as np
import pytest

from jaxformer.nn.grid_positions import GridBias, resize_grid
from jaxformer.nn.keys import Tokens

GRID = (2, 3)
PLACES = [(y, x) for y in range(2) for x in range(3)]


def brute_force_rows(has_class_token):
    """Returns the row of the table of each pair, by a list of all offsets in reading order."""
    offsets = [(y, x) for y in range(-1, 2) for x in range(-2, 3)]
    of_places = []
    for query_y, query_x in PLACES:
        row = [offsets.index((query_y - key_y, query_x - key_x)) for key_y, key_x in PLACES]
        of_places.append(row)
    if not has_class_token:
        return np.array(of_places)

    # The table has three more rows after the 15 offsets.
    to_others = 15
    to_class_token = 16
    to_itself = 17
    rows = [[to_itself] + [to_others] * 6]
    for row in of_places:
        rows.append([to_class_token, *row])
    return np.array(rows)


@pytest.mark.parametrize("has_class_token", [False, True])
def test_the_bias_depends_on_the_offset(has_class_token):
    rows = brute_force_rows(has_class_token)
    table = np.random.default_rng(0).normal(size=(rows.max() + 1, 2)).astype(np.float32)
    module = GridBias(num_heads=2, grid=GRID, has_class_token=has_class_token)
    positions = Tokens.of(len(rows)).positions

    @jax.jit
    def bias(table):
        return module.apply({"params": {"table": table}})(positions, positions)

    np.testing.assert_array_equal(bias(table)[0], table[rows].transpose(2, 0, 1))


def cubic(x):
    """The kernel of Keys (1981) with a = -0.75, term by term."""
    x = abs(x)
    if x <= 1:
        return 1.25 * x**3 - 2.25 * x**2 + 1
    if x < 2:
        return -0.75 * x**3 + 3.75 * x**2 - 6 * x + 3
    return 0.0


def resized_row(values, count):
    """Returns cubic convolution of a row of numbers, one new place after another."""
    length = len(values)
    found = []
    for place in range(count):
        center = (place + 0.5) * length / count - 0.5
        near = range(int(np.floor(center)) - 1, int(np.floor(center)) + 3)
        found.append(sum(cubic(center - i) * values[min(max(i, 0), length - 1)] for i in near))
    return found


@pytest.mark.parametrize("new", [(2, 3), (3, 5), (4, 2)])
def test_a_grid_is_resized_along_both_sides(new):
    old = (4, 3)
    table = np.random.default_rng(1).normal(size=(12, 2)).astype(np.float32)
    found = np.asarray(jax.jit(resize_grid, static_argnums=(1, 2))(table, old, new))

    for feature in range(2):
        by_row = [resized_row(row, new[1]) for row in table[:, feature].reshape(old)]
        columns = [resized_row(column, new[0]) for column in np.array(by_row).T]
        expected = np.array(columns).T.ravel()
        np.testing.assert_allclose(found[:, feature], expected, rtol=1e-5, atol=1e-6)
