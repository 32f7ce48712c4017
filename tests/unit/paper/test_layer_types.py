"""The layers of Table 1 against plain loops, and their costs against the formulas."""

import functools
import itertools
import math

import jax
import numpy as np
import pytest

from jaxformer.paper import layer_types
from jaxformer.paper.table1 import operations

from ...multiplications import multiplications
from ...profiles import by_profile


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def attention_by_loops(x, num_heads, reach):
    """Computes softmax(Q K^T / sqrt(d_k)) V over positions within ``reach``, in float64."""
    x = x.astype(np.float64)
    out = np.zeros_like(x)
    batch, length, width = x.shape
    size = width // num_heads

    for b, i, h in np.ndindex(batch, length, num_heads):
        columns = slice(h * size, (h + 1) * size)
        head = x[b, :, columns]  # [T, K]; queries, keys and values are equal
        near = [j for j in range(length) if abs(i - j) <= reach]
        near_keys = head[near]

        scores = near_keys @ head[i] / math.sqrt(size)
        odds = np.exp(scores)
        weights = odds / odds.sum()
        out[b, i, columns] = weights @ near_keys

    return out


@pytest.mark.parametrize(
    ("length", "neighborhood"),
    by_profile(
        [(13, 3), (13, 41)],
        nightly=[*itertools.product([1, 13], [1, 3, 7, 41])],
    ),
)
def test_restricted_attention_is_masked_full_attention(length, neighborhood):
    x = random(2, length, 6)
    layer = functools.partial(
        layer_types.restricted_self_attention,
        num_heads=2,
        neighborhood=neighborhood,
    )

    restricted = jax.jit(layer)(x)

    expected = attention_by_loops(x, num_heads=2, reach=neighborhood // 2)
    np.testing.assert_allclose(restricted, expected, rtol=1e-4, atol=1e-5)


def test_self_attention_attends_to_all_positions():
    x = random(2, 7, 6)
    layer = functools.partial(layer_types.self_attention, num_heads=3)

    attended = jax.jit(layer)(x)

    expected = attention_by_loops(x, num_heads=3, reach=7)
    np.testing.assert_allclose(attended, expected, rtol=1e-4, atol=1e-5)


def test_recurrent_layer_is_a_loop():
    x = random(2, 5, 3)
    inputs = random(3, 3, seed=1)
    state = random(3, 3, seed=2)

    layer = jax.jit(layer_types.recurrent)
    out = np.asarray(layer(x, inputs, state))

    h = np.zeros((2, 3))
    for t in range(5):
        from_input = x[:, t] @ inputs
        from_state = h @ state
        h = np.tanh(from_input + from_state)
        np.testing.assert_allclose(out[:, t], h, rtol=1e-4, atol=1e-5)


def test_convolution_is_a_sum_of_shifted_products():
    x = random(2, 6, 3)
    kernel = random(3, 3, 3, seed=1)

    layer = jax.jit(layer_types.convolutional)
    out = layer(x, kernel)

    padded = np.pad(x, [(0, 0), (1, 1), (0, 0)])
    expected = 0
    for i in range(3):
        shifted = padded[:, i : i + 6]
        expected = expected + shifted @ kernel[i]
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


def cost(layer, n, d, *weights, **settings):
    """Returns the multiplications of a layer of n positions of width d."""
    shapes = [(1, n, d), *weights]
    arrays = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    with_settings = functools.partial(layer, **settings)
    program = jax.make_jaxpr(with_settings)(*arrays)
    return multiplications(program.jaxpr)


@pytest.mark.parametrize(("n", "d"), [(16, 8), (48, 8), (48, 32)])
def test_costs_equal_the_formulas(n, d):
    """Attention and recurrence have two matmuls each: scores and sums, or inputs and states."""
    attention = cost(layer_types.self_attention, n, d, num_heads=2)
    recurrence = cost(layer_types.recurrent, n, d, (d, d), (d, d))
    for k in (3, 4):
        expected = operations(n, d, k, r=1)
        convolution = cost(layer_types.convolutional, n, d, (k, d, d))
        assert convolution == expected["convolutional"]
        assert attention == 2 * expected["self-attention"]
        assert recurrence == 2 * expected["recurrent"]

    # Blocks of (r - 1) / 2 queries attend to 3 / 2 (r - 1) keys.
    for r in (9, 17):
        restricted = cost(
            layer_types.restricted_self_attention,
            n,
            d,
            num_heads=2,
            neighborhood=r,
        )
        expected = operations(n, d, k=1, r=r - 1)
        assert restricted == 2 * 1.5 * expected["restricted self-attention"]
