"""Repeats against plain Python; other constraints occur in test_beam_oracles.py."""

import functools
import itertools

import jax
import numpy as np
import pytest

from jaxformer.search.candidates import choose
from jaxformer.search.constraints import repeating

from .oracles import beam


@pytest.mark.parametrize("n", [1, 2, 3, 6, 7])
def test_repeats_match_plain_python(n):
    capacity, vocabulary = 6, 3
    histories = np.array(list(itertools.product(range(vocabulary), repeat=capacity)), np.int32)
    find = jax.jit(functools.partial(repeating, n=n, vocabulary=vocabulary))
    for step in range(capacity + 1):
        found = np.asarray(find(histories[:, None], step))
        for history, repeats in zip(histories.tolist(), found[:, 0].tolist(), strict=True):
            so_far = history[:step]
            grams = [so_far[i : i + n] for i in range(step - n + 1)]
            newest = so_far[step - n + 1 :] if step >= n else []
            expected = [[*newest, token] in grams for token in range(vocabulary)]
            assert repeats == expected


def test_constraint_may_prefer_tokens_beyond_probability_one():
    # Token 1 after the second hypothesis is preferred, by 3. Both hypotheses have probability 1.
    logits = np.log(np.full((1, 2, 2), 0.5, np.float32))
    preferred = logits + np.float32([[[0.0, 2.0], [0.0, 3.0]]])
    settings = beam(constraints=(lambda logits, context: preferred,), eos_id=0)
    at_limit = np.array([False])
    arguments = logits, preferred, np.zeros((1, 2), np.float32), at_limit
    found = jax.jit(lambda *arguments: choose(settings, *arguments)[0])(*arguments)
    assert found.parents.tolist() == [[1, 0]]
    np.testing.assert_allclose(found.log_probs, np.log([[0.5, 0.5]]), rtol=1e-6)
