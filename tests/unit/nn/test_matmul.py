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

SHAPES = {
    SCORES: ((2, 5, 3, 4), (2, 7, 3, 4), (2, 3, 5, 7)),
    WEIGHTED_SUM: ((2, 3, 5, 7), (2, 7, 3, 4), (2, 5, 3, 4)),
}


def rounded(a):
    return np.asarray(a).astype(ml_dtypes.bfloat16).astype(np.float64)


@pytest.mark.parametrize(("spec", "dtype"), [*zip(SHAPES, ["bfloat16", jnp.bfloat16], strict=True)])
def test_operands_and_gradients_are_rounded_once(spec, dtype):
    rng = np.random.default_rng(0)
    x, y, g = (rng.normal(size=s).astype(np.float32) for s in SHAPES[spec])

    @jax.jit
    def compute(x, y, g):
        found, pull = jax.vjp(lambda x, y: einsum(spec, x, y, dtype), x, y)
        return (found, *pull(g)), einsum(spec, x, y)

    found, unrounded = jax.device_get(compute(x, y, g))
    operands, result = spec.split("->")
    first, second = operands.split(",")
    expected = {
        "result": np.einsum(spec, rounded(x), rounded(y)),
        "first": np.einsum(f"{result},{second}->{first}", rounded(g), rounded(y)),
        "second": np.einsum(f"{result},{first}->{second}", rounded(g), rounded(x)),
    }
    for name, array in zip(expected, found, strict=True):
        assert array.dtype == np.float32
        np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-5, err_msg=name)
    exact = np.einsum(spec, x, y)
    assert np.abs(found[0] - exact).max() > 1e-3
    np.testing.assert_allclose(unrounded, exact, rtol=1e-5, atol=1e-5)


# Rounding errors relative to the norms: half a unit in the last of 24, 8 or (about) 8 bits.
TOLERANCE = {"float32": 1e-6, "bfloat16": 2**-8, "int8": 2**-7}


def operands():
    random = np.random.default_rng(0)
    x = random.normal(size=(2, 6, 64)).astype(np.float32)
    return x, random.normal(size=(64, 4, 8)).astype(np.float32)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_matmul_error_matches_the_precision(dtype):
    x, kernel = operands()
    bias = np.full(kernel.shape[1:], 3.0, np.float32)

    @jax.jit
    def run(x, kernel, bias):
        stored = quantize_along(kernel, 0) if dtype == "int8" else kernel
        return project(x, stored, bias, dtype)

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


def test_primitives_run_without_jit():
    x, matrix = np.arange(6).reshape(2, 3), np.arange(12).reshape(3, 4) - 6
    floats = [jnp.asarray(a.astype(ml_dtypes.bfloat16)) for a in (x, matrix)]
    integers = jnp.asarray(x.astype(np.uint8)), jnp.asarray(matrix.astype(np.int8))
    with jax.disable_jit():
        product = _bfloat16_matmul.bind(*floats)
        transposed = _transpose.bind(floats[0])
        sums = _unsigned_matmul.bind(*integers, axis=0)
    np.testing.assert_array_equal(product, x @ matrix)
    np.testing.assert_array_equal(np.float32(transposed), x.T)
    np.testing.assert_array_equal(sums, x @ matrix)


def test_unsigned_inputs_change_no_bit():
    """The int8 results are float32 products of exact integers, whichever instruction sums them."""
    random = np.random.default_rng(1)
    arrays = [
        random.normal(size=size).astype(np.float32) for size in ((3, 5, 64), (64, 8), (24, 64))
    ]
    arrays[0][0, 0] = 0.0
    quantize = jax.jit(
        lambda x, *matrices: (quantize_along(x, 2), *map(quantize_along, matrices, (0, 1)))
    )
    inputs, *signed = jax.device_get(quantize(*arrays))
    with use_backend(Backend(unsigned_int8=True)):
        unsigned = with_offsets(signed)
    np.testing.assert_array_equal(
        unsigned[0].offset, 128 * signed[0].values.astype(int).sum(0)[None]
    )

    @jax.jit
    def each_way(signed, unsigned, x):
        def run(matrices, x):
            return project(x, matrices[0], None, "int8"), output_logits(x, matrices[1])

        copies = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), unsigned)  # an ensemble of three
        rows = jax.vmap(run, (None, 1), 1)(unsigned, x)
        return run(unsigned, x), run(signed, x), rows, jax.vmap(run)(copies, x)

    q, w, table = (each.values.astype(int) for each in (inputs, *signed))
    exact = (q @ w, inputs.scale * signed[0].scale), (q @ table.T, inputs.scale * signed[1].scale.T)
    for found in each_way(signed, unsigned, arrays[0]):
        for result, (sums, scale) in zip(found, exact, strict=True):
            np.testing.assert_array_equal(result, sums.astype(np.float32) * scale)


def test_the_unsigned_instruction_gets_operands_of_8_bits():
    kernel = jax.tree.map(np.asarray, quantize_along(np.ones((64, 8), np.float32), 0))
    with use_backend(Backend(unsigned_int8=True)):
        kernel = with_offsets(kernel)
    lowered = jax.jit(lambda x: project(x, kernel, None, "int8")).lower(
        np.ones((4, 64), np.float32)
    )
    assert "(tensor<4x64xui8>, tensor<64x8xi8>) -> tensor<4x8xi32>" in lowered.as_text()


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
