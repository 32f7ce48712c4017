"""Matmuls in every precision against float64, and their gradients."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jaxformer.nn import Backend, use_backend
from jaxformer.nn.embedding import output_logits
from jaxformer.nn.matmul import (
    SCORES,
    WEIGHTED_SUM,
    _bfloat16_matmul,
    _transpose,
    _unsigned_matmul,
    einsum,
    project,
)
from jaxformer.nn.precision import quantize_along, with_offsets

from .weights import normal

SHAPES = {
    SCORES: ((2, 5, 3, 4), (2, 7, 3, 4), (2, 3, 5, 7)),
    WEIGHTED_SUM: ((2, 3, 5, 7), (2, 7, 3, 4), (2, 5, 3, 4)),
}


def rounded(a):
    short = np.asarray(a).astype(ml_dtypes.bfloat16)
    return short.astype(np.float64)


@pytest.mark.parametrize(
    ("spec", "dtype"),
    [
        (SCORES, "bfloat16"),
        (WEIGHTED_SUM, jnp.bfloat16),
    ],
)
def test_operands_and_gradients_are_rounded_once(spec, dtype):
    rng = np.random.default_rng(0)
    x, y, g = (normal(*shape, seed=rng) for shape in SHAPES[spec])

    @jax.jit
    def compute(x, y, g):
        def rounding(x, y):
            return einsum(spec, x, y, dtype)

        product, pull = jax.vjp(rounding, x, y)
        exact = einsum(spec, x, y)
        return product, pull(g), exact

    results = jax.device_get(compute(x, y, g))
    product, (of_first, of_second), unrounded = results

    def check(found, of_spec, left, right):
        assert found.dtype == np.float32
        expected = np.einsum(of_spec, rounded(left), rounded(right))
        np.testing.assert_allclose(
            found,
            expected,
            rtol=1e-5,
            atol=1e-5,
            err_msg=of_spec,
        )

    operands, result = spec.split("->")
    first, second = operands.split(",")
    check(product, spec, left=x, right=y)
    check(of_first, f"{result},{second}->{first}", left=g, right=y)
    check(of_second, f"{result},{first}->{second}", left=g, right=x)

    exact = np.einsum(spec, x, y)
    rounding = np.abs(product - exact)
    assert rounding.max() > 1e-3
    np.testing.assert_allclose(unrounded, exact, rtol=1e-5, atol=1e-5)


# Rounding errors relative to the norms: half a unit in the last of 24, 8 or (about) 8 bits.
TOLERANCE = {"float32": 1e-6, "bfloat16": 2**-8, "int8": 2**-7}


def operands():
    random = np.random.default_rng(0)
    x = normal(2, 6, 64, seed=random)  # [B, R, D]
    kernel = normal(64, 4, 8, seed=random)  # [D, H, K]
    return x, kernel


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_matmul_error_matches_the_precision(dtype):
    x, kernel = operands()
    bias = np.full(kernel.shape[1:], 3.0, np.float32)

    @jax.jit
    def run(x, kernel, bias):
        stored = quantize_along(kernel, 0) if dtype == "int8" else kernel
        return project(x, stored, bias, compute_dtype=dtype)

    found = np.asarray(run(x, kernel, bias))

    product = np.einsum("brd,dhk->brhk", x.astype(np.float64), kernel)
    exact = product + 3.0
    assert found.shape == exact.shape

    of_rows = np.linalg.norm(x, axis=-1)[..., None, None]
    of_columns = np.linalg.norm(kernel, axis=0)
    norms = of_rows * of_columns
    errors = np.abs(found - exact) / norms
    assert errors.max() < TOLERANCE[dtype]

    if dtype != "float32":
        # Inputs are actually rounded.
        assert errors.max() > 1e-5

    if dtype == "int8":
        # Rows are quantized independently.
        x[0, 1:] *= 1000.0
        changed = np.asarray(run(x, kernel, bias))
        np.testing.assert_array_equal(changed[0, 0], found[0, 0])


def test_primitives_run_without_jit():
    x = np.arange(6).reshape(2, 3)
    matrix = np.arange(12).reshape(3, 4) - 6
    floats = jnp.asarray(x, ml_dtypes.bfloat16)
    float_matrix = jnp.asarray(matrix, ml_dtypes.bfloat16)
    unsigned = jnp.asarray(x, np.uint8)
    signed_matrix = jnp.asarray(matrix, np.int8)

    with jax.disable_jit():
        product = _bfloat16_matmul.bind(floats, float_matrix)
        transposed = _transpose.bind(floats)
        sums = _unsigned_matmul.bind(unsigned, signed_matrix, axis=0)

    np.testing.assert_array_equal(product, x @ matrix)
    np.testing.assert_array_equal(np.float32(transposed), x.T)
    np.testing.assert_array_equal(sums, x @ matrix)


def test_unsigned_inputs_change_no_bit():
    """The int8 results are float32 products of exact integers, whichever instruction sums them."""
    random = np.random.default_rng(1)
    x = normal(3, 5, 64, seed=random)  # [B, T, D]
    kernel = normal(64, 8, seed=random)  # [D, F]
    table = normal(24, 64, seed=random)  # [V, D]
    x[0, 0] = 0.0

    @jax.jit
    def quantize(x, kernel, table):
        return (
            quantize_along(x, 2),
            quantize_along(kernel, 0),
            quantize_along(table, 1),
        )

    inputs, *signed = jax.device_get(quantize(x, kernel, table))
    with use_backend(Backend(unsigned_int8=True)):
        unsigned = with_offsets(signed)

    signed_kernel, signed_table = signed
    q = inputs.values.astype(int)
    w = signed_kernel.values.astype(int)
    t = signed_table.values.astype(int)
    column_sums = w.sum(0)[None]
    np.testing.assert_array_equal(unsigned[0].offset, 128 * column_sums)

    def run(matrices, x):
        kernel, table = matrices
        projection = project(x, kernel, None, compute_dtype="int8")
        return projection, output_logits(x, table)

    @jax.jit
    def each_way(signed, unsigned, x):
        ensemble = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), unsigned)
        run_by_row = jax.vmap(run, (None, 1), 1)
        run_by_member = jax.vmap(run)
        return (
            run(unsigned, x),
            run(signed, x),
            run_by_row(unsigned, x),
            run_by_member(ensemble, x),
        )

    kernel_scale = inputs.scale * signed_kernel.scale
    table_scale = inputs.scale * signed_table.scale.T
    projection = (q @ w).astype(np.float32) * kernel_scale
    logits = (q @ t.T).astype(np.float32) * table_scale
    for found_projection, found_logits in each_way(signed, unsigned, x):
        np.testing.assert_array_equal(found_projection, projection)
        np.testing.assert_array_equal(found_logits, logits)


def test_the_unsigned_instruction_gets_operands_of_8_bits():
    ones = np.ones((64, 8), np.float32)
    kernel = jax.tree.map(np.asarray, quantize_along(ones, 0))
    with use_backend(Backend(unsigned_int8=True)):
        kernel = with_offsets(kernel)

    @jax.jit
    def compiled(x):
        return project(x, kernel, None, compute_dtype="int8")

    x = np.ones((4, 64), np.float32)
    text = compiled.lower(x).as_text()
    assert "(tensor<4x64xui8>, tensor<64x8xi8>) -> tensor<4x8xi32>" in text


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_match_autodiff(dtype):
    x, kernel = operands()
    weights = normal(2, 6, 4, 8, seed=2)

    def ours(x, kernel):
        product = project(x, kernel, None, compute_dtype=dtype)
        return (product * weights).sum()

    def plain(x, kernel):
        product = jnp.einsum("brd,dhk->brhk", x, kernel, precision="highest")
        return (product * weights).sum()

    @jax.jit
    def both(x, kernel):
        found = jax.grad(ours, (0, 1))(x, kernel)
        expected = jax.grad(plain, (0, 1))(x, kernel)
        return found, expected

    found, expected = jax.device_get(both(x, kernel))

    tolerance = 1e-5 if dtype == "float32" else 0.02
    for ours_of, expected_of in zip(found, expected, strict=True):
        assert ours_of.dtype == np.float32
        scale = np.abs(expected_of).max()
        np.testing.assert_allclose(ours_of, expected_of, atol=tolerance * scale)
