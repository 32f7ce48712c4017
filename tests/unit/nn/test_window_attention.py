"""Attention within windows against attention to all tokens of a grid with a mask."""

import itertools

import jax
import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.nn import Keys, MultiHeadAttention
from jaxformer.nn.window_attention import WindowAttention

from .weights import normal, random_params

GRID = (4, 6)
WINDOW = 2
X = normal(3, 24, 8)


def visible(shift):
    """Returns whether each token sees each other one, pair by pair."""
    places = list(itertools.product(range(GRID[0]), range(GRID[1])))

    def window(place):
        """The window of a place, and the sides on which it continues at the other end."""
        found = []
        for coordinate, side in zip(place, GRID, strict=True):
            found.append((coordinate - shift) % side // WINDOW)
            found.append(coordinate < shift)
        return found

    windows = [window(place) for place in places]
    rows = []
    for of_query in windows:
        row = [of_query == of_key for of_key in windows]
        rows.append(row)
    return np.array(rows)


@pytest.mark.parametrize("shift", [0, 1])
def test_windows_are_a_mask(shift):
    layer = WindowAttention(2, use_bias=True, grid=GRID, window=WINDOW, shift=shift)
    whole = MultiHeadAttention(2, use_bias=True)
    params = random_params(whole, X)

    @jax.jit
    def run(params, mask):
        variables = {"params": params}
        found, _ = layer.apply(variables, X, Keys.of_sequence(24), method="attend")
        return found, whole.apply(variables, X, mask=mask)

    found, expected = run(params, visible(shift)[None, None])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_dropout_of_a_picture_does_not_depend_on_the_batch():
    layer = WindowAttention(2, dropout_rate=0.5, grid=GRID, window=WINDOW, shift=1)
    params = random_params(MultiHeadAttention(2), X)

    @jax.jit
    def run(x, row_ids):
        return layer.apply(
            {"params": params},
            x,
            Keys.of_sequence(24),
            dropout=row_ids,
            rngs={"dropout": jax.random.key(0)},
            method="attend",
        )[0]

    together = run(X, np.arange(3))
    alone = run(X[1:2], np.array([1]))
    np.testing.assert_allclose(alone[0], together[1], rtol=1e-5, atol=1e-6)

    same_pictures = run(np.stack([X[0]] * 3), np.arange(3))
    assert np.abs(same_pictures[0] - same_pictures[1]).max() > 0.1


@pytest.mark.parametrize(
    ("rules", "memory", "message"),
    [
        ({"causal": True}, None, "WindowAttention: expected x alone, got causal"),
        ({}, X, "WindowAttention: expected x alone, got a memory or a cache"),
    ],
)
def test_other_keys_are_refused(rules, memory, message):
    layer = WindowAttention(2, grid=GRID, window=WINDOW)
    params = random_params(MultiHeadAttention(2), X)
    keys = Keys.of_sequence(24, **rules)
    with pytest.raises(UserError, match=message):
        layer.apply({"params": params}, X, keys, memory, method="attend")
