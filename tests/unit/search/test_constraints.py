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
    tokens = range(vocabulary)
    every = itertools.product(tokens, repeat=capacity)
    histories = np.array(list(every), np.int32)
    find = functools.partial(repeats_ngram, n=n, vocabulary=vocabulary)
    compiled = jax.jit(find)

    for step in range(capacity + 1):
        found = compiled(histories[:, None], step)
        of_histories = np.asarray(found)[:, 0]  # [histories, vocabulary]
        for history, repeats in zip(histories, of_histories, strict=True):
            so_far = history[:step].tolist()
            grams = ngrams(so_far, n)
            newest = so_far[step - n + 1 :] if step >= n else []
            expected = [[*newest, token] in grams for token in tokens]
            assert repeats.tolist() == expected


def ngrams(tokens, n):
    """Returns all runs of n tokens."""
    starts = range(len(tokens) - n + 1)
    return [tokens[start : start + n] for start in starts]


BONUS = np.float32([0, 0, 0, 0, 30, 60, 90])


def beam_with_bonus(log_probs, size):
    """Returns log probabilities and tokens after BOS of a plain beam, which favors some tokens."""
    found = [(0.0, [2])]
    for _ in range(5):
        candidates = []
        for total, tokens in found:
            newest = tokens[-1]
            for token, log_prob in enumerate(log_probs[newest]):
                longer = [*tokens, token]
                new_total = total + log_prob
                value = new_total + BONUS[token]
                candidates.append((value, new_total, longer))

        candidates.sort(key=lambda candidate: -candidate[0])
        best = candidates[:size]
        found = [(total, tokens) for _, total, tokens in best]

    return sorted(found, reverse=True)


@pytest.mark.parametrize(
    "search",
    [
        BeamSearch(beam_size=1),
        BeamSearch(beam_size=3),
        Sampling(),
    ],
)
def test_own_constraints_of_a_search_change_the_choice_and_no_log_prob(search):
    """A field of a search may raise logits, so that a step adds more than log probability 0."""

    class Favoring(type(search)):
        def _constraints(self):
            usual = super()._constraints()
            return [*usual, lambda logits, context: logits + BONUS]

    rng = np.random.default_rng(0)
    drawn = rng.normal(size=(7, 7)).astype(np.float32)
    table = drawn * 3
    table[:, :3] = -np.inf  # Hypotheses run to the limit.

    def step(tokens, cache):
        return jnp.asarray(table)[tokens], cache

    @jax.jit
    def run():
        favoring = Favoring(**vars(search))
        return favoring(step, (), max_lengths=[5], capacity=5)

    found = run()

    # All samples are the most probable one.
    size = 1 if isinstance(search, Sampling) else search.beam_size
    wide = table.astype(np.float64)
    log_probs = scipy.special.log_softmax(wide, axis=1)
    repetitions = search.num_hypotheses // size
    expected = beam_with_bonus(log_probs, size) * repetitions

    after_bos = [tokens[1:] for _, tokens in expected]
    assert found.tokens[0].tolist() == after_bos
    totals = [total for total, _ in expected]
    np.testing.assert_allclose(found.log_probs[0], totals, rtol=1e-5)
