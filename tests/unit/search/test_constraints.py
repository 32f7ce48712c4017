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
    capacity = 6
    vocabulary = 3
    every = itertools.product(range(vocabulary), repeat=capacity)
    histories = np.array(list(every), np.int32)
    find = jax.jit(functools.partial(repeats_ngram, n=n, vocabulary=vocabulary))

    for step in range(capacity + 1):
        found = np.asarray(find(histories[:, None], step))  # [histories, 1, vocabulary]
        for history, repeats in zip(histories.tolist(), found[:, 0].tolist(), strict=True):
            so_far = history[:step]
            grams = [so_far[i : i + n] for i in range(step - n + 1)]
            newest = so_far[step - n + 1 :] if step >= n else []
            expected = [[*newest, token] in grams for token in range(vocabulary)]
            assert repeats == expected


BONUS = np.float32([0, 0, 0, 0, 30, 60, 90])


def beam_with_bonus(log_probs, size):
    """Returns log probabilities and tokens after BOS of a plain beam, which favors some tokens."""
    found = [(0.0, [2])]
    for _ in range(5):
        candidates = []
        for total, tokens in found:
            for token, log_prob in enumerate(log_probs[tokens[-1]]):
                value = total + log_prob + BONUS[token]
                candidates.append((value, total + log_prob, [*tokens, token]))

        candidates.sort(key=lambda candidate: -candidate[0])
        found = [(total, tokens) for _, total, tokens in candidates[:size]]

    return sorted(found, reverse=True)


@pytest.mark.parametrize("search", [BeamSearch(beam_size=1), BeamSearch(beam_size=3), Sampling()])
def test_own_constraints_of_a_search_change_the_choice_and_no_log_prob(search):
    """A field of a search may raise logits, so that a step adds more than log probability 0."""

    class Favoring(type(search)):
        def _constraints(self):
            return [*super()._constraints(), lambda logits, context: logits + BONUS]

    table = np.random.default_rng(0).normal(size=(7, 7)).astype(np.float32) * 3
    table[:, :3] = -np.inf  # Hypotheses run to the limit.

    def step(tokens, cache):
        return jnp.asarray(table)[tokens], cache

    @jax.jit
    def run():
        return Favoring(**vars(search))(step, (), max_lengths=[5], capacity=5)

    found = run()

    # All samples are the most probable one.
    size = 1 if isinstance(search, Sampling) else search.beam_size
    log_probs = scipy.special.log_softmax(table.astype(np.float64), axis=1)
    expected = beam_with_bonus(log_probs, size) * (search.num_hypotheses // size)
    assert found.tokens[0].tolist() == [tokens[1:] for _, tokens in expected]
    totals = [total for total, _ in expected]
    np.testing.assert_allclose(found.log_probs[0], totals, rtol=1e-5)
