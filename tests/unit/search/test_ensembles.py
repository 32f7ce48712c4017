"""Ensembles against the mean of probabilities in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.search import ensemble

from .oracles import INFINITY

TOKENS = jnp.zeros((2, 3), jnp.int32)


def model(tokens, cache):
    """A model whose logits are in its cache, which also counts the calls."""
    return cache["logits"], {**cache, "calls": cache["calls"] + 1}


def caches(*logits: np.ndarray) -> tuple[dict, ...]:
    return tuple({"logits": jnp.asarray(one), "calls": jnp.array(0)} for one in logits)


@pytest.mark.parametrize("number", [2, 3])
def test_probabilities_are_averaged(number: int):
    logits = 5 * np.random.default_rng(0).normal(size=(number, 2, 3, 7)).astype(np.float32)
    logits[:, 0, 0, 1] = -INFINITY  # Impossible for all models.
    logits[0, 1, 1, 2] = -INFINITY  # Impossible for one model.
    found, after = ensemble([model] * number)(TOKENS, caches(*logits))
    exact = np.exp(logits.astype(np.float64))
    exact = (exact / exact.sum(axis=-1, keepdims=True)).mean(axis=0)
    np.testing.assert_allclose(np.exp(np.asarray(found, np.float64)), exact, rtol=1e-5, atol=1e-12)
    assert found.dtype == jnp.float32
    assert [cache["calls"].tolist() for cache in after] == [1] * number


def test_all_tokens_impossible_is_not_nan():
    nothing = np.full((2, 3, 4), -INFINITY, np.float32)
    found, _ = ensemble([model, model])(TOKENS, caches(nothing, np.zeros((2, 3, 4))))
    np.testing.assert_allclose(np.exp(found), 1 / 8, rtol=1e-6)
    found, _ = ensemble([model, model])(TOKENS, caches(nothing, nothing))
    assert (found == -INFINITY).all()


def test_single_model_is_unchanged():
    logits = np.random.default_rng(0).normal(size=(2, 3, 7)).astype(np.float32)
    found, (after,) = ensemble([model])(TOKENS, caches(logits))
    np.testing.assert_array_equal(found, logits)
    assert after["calls"] == 1


def test_bfloat16_logits_are_normalized_in_float32():
    logits = jax.random.normal(jax.random.key(1), (2, 3, 500), jnp.bfloat16)
    found, _ = ensemble([model, model])(TOKENS, caches(logits, logits))
    exact = np.asarray(logits, np.float64)
    exact -= np.log(np.exp(exact).sum(axis=-1, keepdims=True))
    np.testing.assert_allclose(found, exact, rtol=1e-5)


def test_mismatches_are_refused():
    with pytest.raises(UserError, match="at least one step function: got none"):
        ensemble([])
    logits = np.zeros((2, 3, 4))
    with pytest.raises(UserError, match="an ensemble of 2 needs as many caches: got 1"):
        ensemble([model, model])(TOKENS, caches(logits))
    with pytest.raises(UserError, match=r"one vocabulary: got .* \(2, 3, 4\), \(2, 3, 5\)"):
        ensemble([model, model])(TOKENS, caches(logits, np.zeros((2, 3, 5))))
