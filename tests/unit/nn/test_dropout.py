"""Statistical tests of the random bits of dropout."""

import functools

import jax
import numpy as np
import pytest

from jaxformer.nn.dropout import Dropout, random_bits

ROWS = 64
LENGTH = 32
WIDTH = 128


compiled = jax.jit(functools.partial(random_bits, shape=(LENGTH, WIDTH)))


@functools.cache
def bits(seeds=(1, 2), row_ids=tuple(range(ROWS))):
    """Returns random bits, [ROWS, LENGTH, WIDTH], uint32."""
    drawn = compiled(
        np.array(seeds, np.uint32),
        np.array(row_ids, np.int32),
    )
    return np.asarray(drawn)


def masks(rate, *arguments):
    threshold = round(rate * 2**32)
    return bits(*arguments) >= threshold


def as_signs(values):
    """Returns -1 for 0, and 1 for 1."""
    return values.astype(np.float64) * 2 - 1


def assert_standard_normal(z, limit=4.5):
    """Checks that no value is far from 0, for at most a few hundred values."""
    assert np.abs(z).max() < limit


@pytest.mark.parametrize("rate", [0.05, 0.1, 0.3, 0.5])
def test_rate_overall_and_per_row_position_and_feature(rate):
    mask = masks(rate)

    kept = 1 - rate
    variance = rate * kept
    for axes in [(0, 1, 2), (1, 2), (0, 2), (0, 1)]:
        means = mask.mean(axis=axes)
        count = mask.size / means.size
        deviation = np.sqrt(variance / count)
        assert_standard_normal((means - kept) / deviation)


def test_bits_are_fair_and_independent():
    few = bits((3, 4))[:32, :, :64]
    column = few.reshape(-1, 1)
    places = np.arange(32, dtype=np.uint32)
    planes = (column >> places) & 1  # [N, 32]
    signs = as_signs(planes)
    deviation = np.sqrt(len(signs))

    sums = signs.sum(0)
    assert_standard_normal(sums / deviation)

    # Standard normal off the diagonal.
    correlation = signs.T @ signs / deviation
    np.fill_diagonal(correlation, 0)
    assert_standard_normal(correlation, limit=5)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_neighbors_are_uncorrelated(axis):
    signs = as_signs(masks(0.5))
    signs = np.moveaxis(signs, axis, 0)

    for lag in (1, 2, 7):
        product = signs[lag:] * signs[:-lag]
        deviation = np.sqrt(product.size)
        assert_standard_normal(product.sum() / deviation)


def test_seeds_that_differ_in_one_bit_give_independent_masks():
    one = as_signs(masks(0.5, (1, 2)))
    deviation = np.sqrt(one.size)

    highest = 2**31
    for seeds in [(0, 2), (1, 3), (1 ^ highest, 2), (1, 2 ^ highest), (2, 1)]:
        other = as_signs(masks(0.5, seeds))
        product = one * other
        assert_standard_normal(product.sum() / deviation)


def test_mask_depends_on_the_row_id_only():
    two_rows = bits((1, 2), (17, 3))
    np.testing.assert_array_equal(two_rows, bits()[[17, 3]])


ONES = np.ones((ROWS, LENGTH, WIDTH), np.float32)


@jax.jit
def dropped_and_gradient(x, key):
    row_ids = np.arange(x.shape[0])

    def apply(x):
        layer = Dropout(0.25)
        y = layer.apply({}, x, rngs={"dropout": key}, dropout=row_ids)
        return y.sum(), y

    gradient, y = jax.grad(apply, has_aux=True)(x)
    return y, gradient


def test_kept_elements_are_scaled_and_gradients_are_the_mask():
    results = dropped_and_gradient(ONES, jax.random.key(1))
    kept, gradient = jax.device_get(results)
    scale = np.float32(1 / 0.75)
    assert set(np.unique(kept)) == {0, scale}
    assert kept.mean() == pytest.approx(1.0, abs=0.005)
    np.testing.assert_array_equal(gradient, kept)

    results = dropped_and_gradient(ONES, jax.random.key(2))
    other, _ = jax.device_get(results)
    assert (kept != other).any()
