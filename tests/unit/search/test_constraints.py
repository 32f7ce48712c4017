"""Repeats against plain Python; other constraints occur in test_beam_oracles.py."""

import functools
import itertools

import jax
import numpy as np
import pytest

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
