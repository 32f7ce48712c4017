"""Statistical tests of the random bits of dropout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.nn.dropout import Dropout, random_bits

ROWS, LENGTH, WIDTH = 64, 32, 128


def masks(rate, seeds=(1, 2), row_ids=None):
    row_ids = jnp.arange(ROWS) if row_ids is None else jnp.asarray(row_ids)
    bits = random_bits(jnp.array(seeds, jnp.uint32), row_ids, (LENGTH, WIDTH))
    return np.asarray(bits) >= round(rate * 2**32)


@pytest.mark.parametrize("rate", [0.05, 0.1, 0.3, 0.5])
def test_rate_overall_and_per_row_position_and_feature(rate):
    mask = masks(rate)
    for axes in [(0, 1, 2), (1, 2), (0, 2), (0, 1)]:
        count = mask.size / np.prod([mask.shape[a] for a in range(3) if a not in axes] or [1])
        z = (mask.mean(axis=axes) - (1 - rate)) / np.sqrt(rate * (1 - rate) / count)
        assert np.abs(z).max() < 4.5  # At most 128 values, each standard normal.


def test_bits_are_fair_and_independent():
    bits = np.asarray(random_bits(jnp.array([3, 4], jnp.uint32), jnp.arange(32), (32, 64)))
    planes = (bits.reshape(-1, 1) >> np.arange(32, dtype=np.uint32)) & 1
    signs = planes.astype(np.float64) * 2 - 1
    correlation = signs.T @ signs / np.sqrt(len(signs))  # Standard normal off the diagonal.
    assert np.abs(signs.sum(0) / np.sqrt(len(signs))).max() < 4.5
    np.fill_diagonal(correlation, 0)
    assert np.abs(correlation).max() < 5


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("lag", [1, 2, 7])
def test_neighbors_are_uncorrelated(axis, lag):
    signs = masks(0.5).astype(np.float64) * 2 - 1
    length = signs.shape[axis]
    product = np.take(signs, range(lag, length), axis) * np.take(signs, range(length - lag), axis)
    assert abs(product.sum() / np.sqrt(product.size)) < 4.5


def test_seeds_that_differ_in_one_bit_give_independent_masks():
    one = masks(0.5, (1, 2)).astype(np.float64) * 2 - 1
    for seeds in [(0, 2), (1, 3), (1 ^ 2**31, 2), (1, 2 ^ 2**31), (2, 1)]:
        other = masks(0.5, seeds).astype(np.float64) * 2 - 1
        assert abs((one * other).sum() / np.sqrt(one.size)) < 4.5


def test_bits_are_uniform_by_chi_square():
    bits = np.asarray(random_bits(jnp.array([5, 6], jnp.uint32), jnp.arange(64), (64, 64)))
    counts = np.bincount(bits.reshape(-1) >> 24, minlength=256)
    expected = bits.size / 256
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi_square - 255) < 4.5 * np.sqrt(2 * 255)


def test_mask_depends_on_the_row_id_only():
    whole = masks(0.3)
    np.testing.assert_array_equal(masks(0.3, row_ids=[17, 3]), whole[[17, 3]])


def apply(x, rate, key=0, **arguments):
    return Dropout(rate).apply(
        {}, x, rngs={"dropout": jax.random.key(key)}, deterministic=False, row_ids=None, **arguments
    )


def test_kept_elements_are_scaled_and_keep_the_mean():
    x = jnp.ones((ROWS, LENGTH, WIDTH))
    y = np.asarray(apply(x, 0.25))
    assert set(np.unique(y)) == {np.float32(0), np.float32(1 / 0.75)}
    assert y.mean() == pytest.approx(1.0, abs=0.005)


def test_mask_depends_on_the_key():
    x = jnp.ones((2, 8, 16))
    np.testing.assert_array_equal(apply(x, 0.5, key=1), apply(x, 0.5, key=1))
    assert (apply(x, 0.5, key=1) != apply(x, 0.5, key=2)).any()


def test_deterministic_and_rate_zero_change_nothing():
    x = jnp.arange(24.0).reshape(2, 3, 4)
    assert Dropout(0.5).apply({}, x, row_ids=None, deterministic=True) is x
    assert Dropout(0.0).apply({}, x, row_ids=None, deterministic=False) is x


def test_gradient_is_the_mask():
    x = jnp.ones((2, 8, 16))
    gradient = jax.grad(lambda x: apply(x, 0.5).sum())(x)
    np.testing.assert_array_equal(gradient, apply(x, 0.5))
