"""The blockwise top-k against XLA's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxformer.search.top_k import top_k


@pytest.mark.parametrize("size", [5, 128, 1000, 1024, 8001])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_equals_lax_top_k_with_ties_and_impossible_values(size, k):
    random = np.random.default_rng(size + k)
    values = random.integers(-3, 4, (2, 3, size)).astype(np.float32)  # Many ties.
    values[random.random(values.shape) < 0.3] = -np.inf
    values[0, 0] = -np.inf
    values[0, 1] = random.normal(size=size)
    values[0, 2, :] = -np.inf
    values[0, 2, size - 1] = 1.0
    for found, expected in zip(top_k(jnp.asarray(values), k), lax.top_k(values, k), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_places_are_32_bits_wide_under_x64():
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        values, places = top_k(jnp.arange(2000.0, dtype=jnp.float32)[None], 4)
    assert (values.dtype, places.dtype) == (jnp.float32, jnp.int32)
    assert places.tolist() == [[1999, 1998, 1997, 1996]]
