"""Statistical tests of the random bits of dropout."""

import functools

import jax
import numpy as np
import pytest

from jaxformer.nn.dropout import Dropout, random_bits

ROWS, LENGTH, WIDTH = 64, 32, 128


compiled = jax.jit(functools.partial(random_bits, shape=(LENGTH, WIDTH)))


@functools.cache
def bits(seeds=(1, 2), row_ids=tuple(range(ROWS))):
    return np.asarray(compiled(np.array(seeds, np.uint32), np.array(row_ids, np.int32)))


def masks(rate, *arguments):
    return bits(*arguments) >= round(rate * 2**32)


@pytest.mark.parametrize("rate", [0.05, 0.1, 0.3, 0.5])
def test_rate_overall_and_per_row_position_and_feature(rate):
    mask = masks(rate)
    for axes in [(0, 1, 2), (1, 2), (0, 2), (0, 1)]:
        count = mask.size / np.prod([mask.shape[a] for a in range(3) if a not in axes] or [1])
        z = (mask.mean(axis=axes) - (1 - rate)) / np.sqrt(rate * (1 - rate) / count)
        assert np.abs(z).max() < 4.5  # At most 128 values, each standard normal.


def test_bits_are_fair_and_independent():
    few = bits((3, 4))[:32, :, :64]
    planes = (few.reshape(-1, 1) >> np.arange(32, dtype=np.uint32)) & 1
    signs = planes.astype(np.float64) * 2 - 1
    correlation = signs.T @ signs / np.sqrt(len(signs))  # Standard normal off the diagonal.
    assert np.abs(signs.sum(0) / np.sqrt(len(signs))).max() < 4.5
    np.fill_diagonal(correlation, 0)
    assert np.abs(correlation).max() < 5


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_neighbors_are_uncorrelated(axis):
    signs = np.moveaxis(masks(0.5).astype(np.float64) * 2 - 1, axis, 0)
    for lag in (1, 2, 7):
        product = signs[lag:] * signs[:-lag]
        assert abs(product.sum() / np.sqrt(product.size)) < 4.5, lag


def test_seeds_that_differ_in_one_bit_give_independent_masks():
    one = masks(0.5, (1, 2)).astype(np.float64) * 2 - 1
    for seeds in [(0, 2), (1, 3), (1 ^ 2**31, 2), (1, 2 ^ 2**31), (2, 1)]:
        other = masks(0.5, seeds).astype(np.float64) * 2 - 1
        assert abs((one * other).sum() / np.sqrt(one.size)) < 4.5


def test_mask_depends_on_the_row_id_only():
    np.testing.assert_array_equal(bits((1, 2), (17, 3)), bits()[[17, 3]])


ONES = np.ones((ROWS, LENGTH, WIDTH), np.float32)


@jax.jit
def dropped_and_gradient(x, key):
    def apply(x):
        y = Dropout(0.25).apply({}, x, rngs={"dropout": key}, dropout=np.arange(x.shape[0]))
        return y.sum(), y

    return jax.grad(apply, has_aux=True)(x)[::-1]


def test_kept_elements_are_scaled_and_gradients_are_the_mask():
    kept, gradient = map(np.asarray, dropped_and_gradient(ONES, jax.random.key(1)))
    assert set(np.unique(kept)) == {np.float32(0), np.float32(1 / 0.75)}
    assert kept.mean() == pytest.approx(1.0, abs=0.005)
    np.testing.assert_array_equal(gradient, kept)
    other, _ = dropped_and_gradient(ONES, jax.random.key(2))
    assert (kept != np.asarray(other)).any()
