"""The matmuls of attention in bfloat16, against float64 with operands rounded by hand."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jaxformer.nn.matmul import SCORES, WEIGHTED_SUM, einsum

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
