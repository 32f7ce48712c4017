"""Ensembles against the mean of probabilities in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.search import ensemble

from .oracles import INFINITY

TOKENS = np.zeros((2, 3), np.int32)


def model(tokens, cache):
    """A model whose logits are in its cache, which also counts the calls."""
    return cache["logits"], {**cache, "calls": cache["calls"] + 1}


def together(*logits):
    """Returns the logits of an ensemble, and the caches of its models after a step."""
    step = jax.jit(ensemble([model] * len(logits)))
    caches = tuple({"logits": one, "calls": np.array(0)} for one in logits)
    return jax.device_get(step(TOKENS, caches))


@pytest.mark.parametrize(("number", "dtype"), [(2, "float32"), (3, jnp.bfloat16)])
def test_probabilities_are_averaged(number, dtype):
    """In float32, whatever the type of the logits."""
    rng = np.random.default_rng(0)
    normal = rng.normal(size=(number, 2, 3, 7))
    logits = (5 * normal).astype(dtype)
    logits[:, 0, 0, 1] = -INFINITY  # Impossible for all models.
    logits[0, 1, 1, 2] = -INFINITY  # Impossible for one model.
    logits[:, 1, 2] = -INFINITY  # No token is possible for any model.

    found, after = together(*logits)

    # Softmax, and 0 instead of 0 / 0 where no token is possible.
    odds = np.exp(logits.astype(np.float64))
    with np.errstate(invalid="ignore"):
        softmax = odds / odds.sum(axis=-1, keepdims=True)
    probabilities = np.nan_to_num(softmax)
    expected = probabilities.mean(axis=0)
    found_probabilities = np.exp(np.float64(found))
    np.testing.assert_allclose(found_probabilities, expected, rtol=1e-5, atol=1e-12)
    assert found.dtype == np.float32
    calls = [int(cache["calls"]) for cache in after]
    assert calls == [1] * number


def test_mismatches_are_refused():
    logits = np.zeros((2, 3, 4))
    more_tokens = np.zeros((2, 3, 5))
    with pytest.raises(UserError, match=r"one vocabulary: got .* \(2, 3, 4\), \(2, 3, 5\)"):
        together(logits, more_tokens)
