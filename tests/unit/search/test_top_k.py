"""The blockwise top-k against a stable sort."""

import jax
import numpy as np
import pytest

from jaxformer.search.top_k import top_k

compiled = jax.jit(top_k, static_argnums=1)


@pytest.mark.parametrize(
    ("size", "k"), [(5, 5), (128, 1), (1000, 2), (1024, 5), (1025, 2), (8001, 5)]
)
def test_equals_a_stable_sort_with_ties_and_impossible_values(size, k):
    random = np.random.default_rng(size + k)
    values = random.integers(-3, 4, (2, 3, size)).astype(np.float32)  # Many ties.
    values[random.random(values.shape) < 0.3] = -np.inf
    values[0, 0] = -np.inf
    values[0, 1] = random.normal(size=size)
    values[0, 2, :] = -np.inf
    values[0, 2, size - 1] = 1.0
    places = np.argsort(-values, axis=2, kind="stable")[:, :, :k]
    found = jax.device_get(compiled(values, k))
    np.testing.assert_array_equal(found[0], np.take_along_axis(values, places, axis=2))
    np.testing.assert_array_equal(found[1], places)
