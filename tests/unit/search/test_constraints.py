"""Repeats against plain Python; other constraints occur in test_beam_oracles.py."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from jaxformer.search import BeamSearch, Sampling
from jaxformer.search.constraints import repeats_ngram


@pytest.mark.parametrize("n", [1, 2, 3, 6, 7])
def test_repeats_match_plain_python(n):
    capacity, vocabulary = 6, 3
    histories = np.array(list(itertools.product(range(vocabulary), repeat=capacity)), np.int32)
    find = jax.jit(functools.partial(repeats_ngram, n=n, vocabulary=vocabulary))
    for step in range(capacity + 1):
        found = np.asarray(find(histories[:, None], step))
        for history, repeats in zip(histories.tolist(), found[:, 0].tolist(), strict=True):
            so_far = history[:step]
            grams = [so_far[i : i + n] for i in range(step - n + 1)]
            newest = so_far[step - n + 1 :] if step >= n else []
            expected = [[*newest, token] in grams for token in range(vocabulary)]
            assert repeats == expected


BONUS = np.float32([0, 0, 0, 0, 30, 60, 90])


@pytest.mark.parametrize("search", [BeamSearch(beam_size=1), BeamSearch(beam_size=3), Sampling()])
def test_own_constraints_of_a_search_change_the_choice_and_no_log_prob(search):
    """A field of a search may raise logits, so that a step adds more than log probability 0."""

    class Favoring(type(search)):
        def _constraints(self):
            return [*super()._constraints(), lambda logits, context: logits + BONUS]

    table = np.random.default_rng(0).normal(size=(7, 7)).astype(np.float32) * 3
    table[:, :3] = -np.inf  # Hypotheses run to the limit.

    @jax.jit
    def run():
        step = lambda tokens, cache: (jnp.asarray(table)[tokens], cache)  # noqa: E731
        return Favoring(**vars(search))(step, (), max_lengths=[5], capacity=5)

    found, log_probs = run(), scipy.special.log_softmax(table.astype(np.float64), axis=1)
    expected = [(0.0, [2])]
    for _ in range(5):
        more = [(p, row, t) for p, row in expected for t in range(7)]
        more.sort(key=lambda c: -(c[0] + log_probs[c[1][-1], c[2]] + BONUS[c[2]]))
        size = 1 if isinstance(search, Sampling) else search.beam_size
        expected = [(p + log_probs[row[-1], t], [*row, t]) for p, row, t in more[:size]]
    # All samples are the most probable one.
    expected = sorted(expected, reverse=True) * (search.num_hypotheses // len(expected))
    assert found.tokens[0].tolist() == [row[1:] for _, row in expected]
    np.testing.assert_allclose(found.log_probs[0], [p for p, _ in expected], rtol=1e-5)
