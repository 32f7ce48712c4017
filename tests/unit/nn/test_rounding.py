"""Matmuls whose operands are rounded, by closed formulas with ml_dtypes in NumPy."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jaxformer.nn.matmul import SCORES, WEIGHTED_SUM, einsum, project
from jaxformer.nn.rounding import round_gradient, round_operand

from .weights import normal


def rounded(array, dtype):
    return np.asarray(array, np.float32).astype(dtype).astype(np.float64)


def scaled(array, dtype):
    """Returns an array rounded to float8, after multiplication by the largest scale that fits."""
    ratio = float(ml_dtypes.finfo(dtype).max) / np.abs(array).max().astype(np.float64)
    scale = 2.0 ** np.floor(np.log2(ratio))
    return rounded(array * scale, dtype) / scale


# How operands and gradients are rounded.
ROUNDINGS = {
    "float16": (
        lambda array: rounded(array, np.float16),
        lambda array: rounded(array, np.float16),
    ),
    "float8": (
        lambda array: scaled(array, ml_dtypes.float8_e4m3fn),
        lambda array: scaled(array, ml_dtypes.float8_e5m2),
    ),
}


@pytest.mark.parametrize("compute_dtype", ROUNDINGS)
def test_matmuls_and_their_gradients_round_both_operands(compute_dtype):
    rng = np.random.default_rng(0)
    x = normal(2, 6, 16, seed=rng)  # [B, R, D]
    kernel = normal(16, 4, 8, seed=rng)  # [D, H, K]
    gradient = 1e-3 * normal(2, 6, 4, 8, seed=rng)

    @jax.jit
    def compute(x, kernel, gradient):
        def multiply(x, kernel):
            return project(x, kernel, compute_dtype=compute_dtype)

        product, pull = jax.vjp(multiply, x, kernel)
        return product, *pull(gradient)

    product, of_x, of_kernel = jax.device_get(compute(x, kernel, gradient))

    round_operand, round_gradient = ROUNDINGS[compute_dtype]
    x = round_operand(x)
    kernel = round_operand(kernel)
    gradient = round_gradient(gradient)
    expected = np.einsum("brd,dhk->brhk", x, kernel)
    np.testing.assert_allclose(product, expected, rtol=1e-5, atol=1e-5)
    expected = np.einsum("brhk,dhk->brd", gradient, kernel)
    np.testing.assert_allclose(of_x, expected, rtol=1e-5, atol=1e-8)
    expected = np.einsum("brd,brhk->dhk", x, gradient)
    np.testing.assert_allclose(of_kernel, expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(
    ("largest", "scale"),
    [(448.0, 1), (449.0, 0.5), (56.0, 8), (0.0, 512), (3e38, 2.0**-120), (1e-36, 2.0**126)],
)
def test_the_scale_of_float8_is_the_largest_power_of_two_that_fits(largest, scale):
    array = np.asarray([largest, -largest / 3, largest / 10], np.float32)
    found = jax.jit(lambda array: round_operand(array, "float8"))(array)
    expected = rounded(array * np.float32(scale), ml_dtypes.float8_e4m3fn) / scale
    np.testing.assert_array_equal(np.asarray(found, np.float64), expected)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_float8_keeps_what_is_not_finite(value):
    array = jnp.asarray([value, 1.0], jnp.float32)
    for function in (round_operand, round_gradient):
        found = np.asarray(function(array, "float8"), np.float32)
        assert not np.isfinite(found[0])


def test_gradients_of_parameters_in_float16_do_not_overflow():
    """Their sums over the rows may exceed 65,504, also where activations are in float16."""

    def total(kernel, x):
        return project(x, kernel, compute_dtype="float16").astype(jnp.float32).sum()

    gradient = jax.grad(total)(np.ones((1, 1), np.float32), jnp.full((8, 1), 3e4, jnp.float16))
    assert gradient.dtype == jnp.float32
    assert gradient[0, 0] == 8 * np.float32(np.float16(3e4))


@pytest.mark.parametrize("spec", [SCORES, WEIGHTED_SUM])
def test_attention_rounds_to_float16(spec):
    shapes = {SCORES: ((2, 5, 3, 4), (2, 7, 3, 4)), WEIGHTED_SUM: ((2, 3, 5, 7), (2, 7, 3, 4))}
    rng = np.random.default_rng(1)
    x, y = (normal(*shape, seed=rng) for shape in shapes[spec])

    @jax.jit
    def compute(x, y):
        def total(x, y):
            product = einsum(spec, x, y, "float16")
            return 0.1 * product.sum(), product

        return jax.grad(total, argnums=(0, 1), has_aux=True)(x, y)

    (of_x, of_y), product = jax.device_get(compute(x, y))
    x16 = rounded(x, np.float16)
    y16 = rounded(y, np.float16)
    np.testing.assert_allclose(product, np.einsum(spec, x16, y16), rtol=1e-5, atol=1e-5)

    ones = rounded(np.full(product.shape, 0.1), np.float16)
    operands, result = spec.split("->")
    first, second = operands.split(",")
    expected = np.einsum(f"{result},{second}->{first}", ones, y16)
    np.testing.assert_allclose(of_x, expected, rtol=1e-5, atol=1e-5)
    expected = np.einsum(f"{first},{result}->{second}", x16, ones)
    np.testing.assert_allclose(of_y, expected, rtol=1e-5, atol=1e-5)
