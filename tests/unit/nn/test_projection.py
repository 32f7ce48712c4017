"""Matmuls in every precision against float64, and their gradients against autodiff."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.nn.embedding import embed, output_logits
from jaxformer.nn.matmul import project
from jaxformer.nn.precision import quantize_along

DTYPES = ("float32", "bfloat16", "int8")
# Rounding errors relative to the norms: half a unit in the last of 24, 8 or (about) 8 bits.
TOLERANCE = {"float32": 1e-6, "bfloat16": 2**-8, "int8": 2**-7}


def operands(rows=6, inputs=64, heads=4, size=8):
    random = np.random.default_rng(0)
    x = random.normal(size=(2, rows, inputs)).astype(np.float32)
    kernel = random.normal(size=(inputs, heads, size)).astype(np.float32)
    return x, kernel


def stored(kernel, dtype, axis):
    return quantize_along(jnp.asarray(kernel), axis) if dtype == "int8" else kernel


@pytest.mark.parametrize("dtype", DTYPES)
def test_matmul_error_matches_the_precision(dtype):
    x, kernel = operands()
    bias = np.full(kernel.shape[1:], 3.0, np.float32)
    run = jax.jit(lambda x, kernel, bias: project(x, stored(kernel, dtype, 0), bias, dtype))
    found = np.asarray(run(x, kernel, bias))
    exact = np.einsum("brd,dhk->brhk", x.astype(np.float64), kernel) + 3.0
    assert found.shape == exact.shape
    norms = np.linalg.norm(x, axis=-1)[..., None, None] * np.linalg.norm(kernel, axis=0)
    errors = np.abs(found - exact) / norms
    assert errors.max() < TOLERANCE[dtype]
    if dtype != "float32":
        assert errors.max() > 1e-5  # Inputs are actually rounded.
    if dtype == "int8":  # Rows are quantized independently.
        x[0, 1:] *= 1000.0
        np.testing.assert_array_equal(np.asarray(run(x, kernel, bias))[0, 0], found[0, 0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_tables_embed_and_project_in_their_precision(dtype):
    x, kernel = operands(heads=1, size=11)
    table = kernel[:, 0].T.copy()

    @jax.jit
    def run(x, table, ids):
        table = stored(table, dtype, 1) if dtype == "int8" else table.astype(dtype)
        return output_logits(x, table), embed(table, ids)

    found, rows = run(x, table, np.array([[3, 11, -1, 10]]))
    rows, found = np.asarray(rows[0], np.float32), np.asarray(found)
    if dtype != "bfloat16":  # Tables stay float32.
        assert found.dtype == np.float32
        norms = np.linalg.norm(x, axis=-1)[..., None] * np.linalg.norm(table, axis=1)
        errors = np.abs(found - x.astype(np.float64) @ table.T) / norms
        assert errors.max() < TOLERANCE[dtype]
    np.testing.assert_allclose(rows[[0, 3]], table[[3, 10]], atol=np.abs(table).max() / 200)
    assert np.isnan(rows[1:3]).all()  # Ids out of range.


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_match_autodiff(dtype):
    x, kernel = operands()
    weights = np.random.default_rng(2).normal(size=(2, 6, 4, 8)).astype(np.float32)

    def ours(x, kernel):
        return (project(x, kernel, None, dtype) * weights).sum()

    def plain(x, kernel):
        return (jnp.einsum("brd,dhk->brhk", x, kernel, precision="highest") * weights).sum()

    both = jax.jit(lambda *operands: [jax.grad(f, (0, 1))(*operands) for f in (ours, plain)])
    found, expected = jax.device_get(both(x, kernel))
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == np.float32
        scale = np.abs(b).max()
        np.testing.assert_allclose(a, b, atol=(1e-5 if dtype == "float32" else 0.02) * scale)
