"""Choosing candidates, where the oracles of test_beam_oracles.py do not look."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.search.candidates import choose, expand

from .oracles import INFINITY, beam, log


def run(function, *arguments):
    found = jax.jit(function)(*arguments)
    return [np.asarray(array) for array in (found.log_probs, found.tokens, found.parents)]


def test_expand_in_bfloat16_range_is_normalized_in_float32():
    logits = np.random.default_rng(1).normal(size=(1, 1, 4000)).astype(jnp.bfloat16)
    logits = logits.astype(np.float32)
    log_probs, *_ = run(expand, logits, np.zeros((1, 1), np.float32), logits)
    exact = logits.astype(np.float64)
    expected = exact.max() - np.log(np.exp(exact).sum())
    assert log_probs.dtype == np.float32
    assert log_probs[0, 0] == pytest.approx(expected, rel=1e-6)


def test_expand_orders_candidates():
    odds = np.float32([[[1, 1, 1], [1, 1, 1]], [[1, 0, 0], [0, 0, 0]], [[2, 1, 1], [2, 1, 1]]])
    # Of the last sentence the first token costs log 4, and the third is forbidden.
    cost = np.log(np.float32([[[1, 1, 1]], [[1, 1, 1]], [[4, 1, INFINITY]]]))
    logits = log(odds)
    before = np.float32([[0, 0], [-1, 0], [0, -9]])
    # All candidates are preferred by their logits minus the cost.
    log_probs, tokens, parents = run(
        lambda *a: expand(a[0], a[1], a[0] - a[2]), logits, before, cost
    )
    # Ties are ordered by hypothesis, then by token.
    assert parents[0].tolist() == [0, 0, 0, 1]
    assert tokens[0].tolist() == [0, 1, 2, 0]
    # Impossible tokens stay impossible.
    assert log_probs[1].tolist() == [-1.0, -INFINITY, -INFINITY, -INFINITY]
    assert (parents[1, 0], tokens[1, 0]) == (0, 0)
    # The choice is by preference, and the log probability by logits.
    assert tokens[2].tolist() == [1, 0, 1, 0]
    expected = np.log([1 / 4, 1 / 2, 1 / 4, 1 / 2]) - [0, 0, 9, 9]
    np.testing.assert_allclose(log_probs[2], expected, rtol=1e-6)


def test_constraint_may_prefer_tokens_beyond_probability_one():
    # Token 1 after the second hypothesis is preferred, by 3. Both hypotheses have probability 1.
    logits = np.log(np.full((1, 2, 2), 0.5, np.float32))
    preferred = logits + np.float32([[[0.0, 2.0], [0.0, 3.0]]])
    settings = beam(constraints=(lambda logits, context: preferred,), eos_id=0)
    at_limit = np.array([False])
    log_probs, _, parents = run(
        lambda *a: choose(settings, *a)[0],
        logits,
        preferred,
        np.zeros((1, 2), np.float32),
        at_limit,
    )
    assert parents.tolist() == [[1, 0]]
    np.testing.assert_allclose(log_probs, np.log([[0.5, 0.5]]), rtol=1e-6)
