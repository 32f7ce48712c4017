"""Forbidden tokens against plain Python."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.search.constraints import constrain, repeating

from .oracles import EOS, INFINITY, PAD, beam

LOGITS = np.arange(4, dtype=np.float32).reshape(1, 1, 4)


@functools.partial(jax.jit, static_argnames="settings")
def allowed(settings, prefix, step, tokens):
    state = settings.start((), [5], 5, prefix).replace(step=step)
    return constrain(settings, jnp.asarray(LOGITS), tokens, state)


def forbidden(prefix, step, tokens=(), **changes):
    tokens = np.int32([[[*tokens, *[PAD] * (5 - len(tokens))]]])
    found = np.asarray(allowed(beam(beam_size=1, **changes), np.int32([prefix]), step, tokens))
    kept = found > -INFINITY
    np.testing.assert_array_equal(found[kept], LOGITS[kept])  # Constraints only forbid.
    return np.flatnonzero(~kept).tolist()


def test_no_constraints_by_default():
    def constrained(logits):
        state = beam(beam_size=1).start((), [5], 5)
        assert state.sentence_ids is None
        assert constrain(beam(beam_size=1), logits, jnp.zeros((1, 1, 5), int), state) is logits

    jax.eval_shape(constrained, LOGITS)


def test_min_length_forbids_only_eos_and_no_prefix():
    assert [forbidden([], n, min_length=2) for n in range(4)] == [[EOS], [EOS], [], []]
    prefix = [2, 2, EOS]
    assert forbidden(prefix, 2, tokens=[2, 2], min_length=4) == [0, 2, 3]


def test_prefix_forces_its_tokens_and_nothing_after():
    prefix = [2, 3, PAD]
    assert [forbidden(prefix, n) for n in range(5)] == [[0, 1, 3], [0, 1, 2], [], [], []]
    assert forbidden([2, 2, EOS], 1, tokens=[2, 2], no_repeat_ngram=1) == [0, 1, 3]


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
