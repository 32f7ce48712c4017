"""Forbidden tokens against plain Python."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.search.constraints import constrain, repeating

from .oracles import EOS, INFINITY, PAD, beam

NO_PREFIX = jnp.zeros((1, 0), jnp.int32)
LOGITS = jnp.arange(4.0).reshape(1, 1, 4)
EMPTY = jnp.full((1, 1, 5), PAD, jnp.int32)


def forbidden(prefix=NO_PREFIX, step: int = 0, tokens=EMPTY, **changes) -> list[int]:
    settings = beam(beam_size=1, **changes)
    state = settings.start((), [5], 5, prefix).replace(step=jnp.array(step))
    allowed = constrain(settings, LOGITS, tokens, state)
    kept = allowed > -INFINITY
    np.testing.assert_array_equal(allowed[kept], LOGITS[kept])  # Constraints only forbid.
    return np.flatnonzero(~kept).tolist()


def test_no_constraints_by_default():
    state = beam(beam_size=1).start((), [5], 5)
    assert state.sentence_ids is None
    assert constrain(beam(beam_size=1), LOGITS, EMPTY, state) is LOGITS


def test_min_length_forbids_only_eos():
    assert [forbidden(min_length=2, step=step) for step in range(4)] == [[EOS], [EOS], [], []]


def test_prefix_forces_its_tokens_and_nothing_after():
    prefix = jnp.array([[2, 3, PAD]])
    assert [forbidden(prefix, step) for step in range(5)] == [[0, 1, 3], [0, 1, 2], [], [], []]


def test_prefix_is_never_forbidden():
    tokens = jnp.array([[[2, 2, PAD, PAD, PAD]]], jnp.int32)
    prefix = jnp.array([[2, 2, EOS]])
    assert forbidden(prefix, 1, tokens, no_repeat_ngram=1) == [0, 1, 3]
    assert forbidden(prefix, 2, tokens, min_length=4) == [0, 2, 3]


@pytest.mark.parametrize("n", [1, 2, 3, 6, 7])
def test_repeats_match_plain_python(n: int):
    capacity, vocabulary = 6, 3
    histories = np.array(list(itertools.product(range(vocabulary), repeat=capacity)), np.int32)
    find = jax.jit(functools.partial(repeating, n=n, vocabulary=vocabulary))
    for step in range(capacity + 1):
        found = find(jnp.array(histories[:, None]), jnp.array(step))
        for history, repeats in zip(histories.tolist(), found[:, 0].tolist(), strict=True):
            so_far = history[:step]
            grams = [so_far[i : i + n] for i in range(step - n + 1)]
            newest = so_far[step - n + 1 :] if step >= n else []
            expected = [[*newest, token] in grams for token in range(vocabulary)]
            assert repeats == expected
