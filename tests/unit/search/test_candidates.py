"""Choosing candidates in beam search, and merging finished hypotheses."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.search import BeamResult
from jaxformer.search.beam import merge_finished
from jaxformer.search.candidates import choose, expand, mask_finished, split
from jaxformer.search.state import Candidates

from .oracles import EOS, INFINITY, PAD, beam, hypotheses

NOT_YET = np.array([False])


def run(function, *arguments, **static):
    return jax.device_get(jax.jit(functools.partial(function, **static))(*arguments))


def test_expand_in_bfloat16_range_is_normalized_in_float32():
    logits = np.random.default_rng(1).normal(size=(1, 1, 4000)).astype(jnp.bfloat16)
    logits = logits.astype(np.float32)
    candidates = run(expand, logits, np.zeros((1, 1), np.float32), logits)
    exact = logits.astype(np.float64)
    expected = exact.max() - np.log(np.exp(exact).sum())
    assert candidates.log_probs.dtype == np.float32
    assert candidates.log_probs[0, 0] == pytest.approx(expected, rel=1e-6)


def test_expand_orders_candidates():
    odds = np.float32([[[1, 1, 1], [1, 1, 1]], [[1, 0, 0], [0, 0, 0]], [[2, 1, 1], [2, 1, 1]]])
    # Of the last sentence the first token costs log 4, and the third is forbidden.
    cost = np.log(np.float32([[[1, 1, 1]], [[1, 1, 1]], [[4, 1, INFINITY]]]))
    with np.errstate(divide="ignore"):
        logits = np.log(odds)
    before = np.float32([[0, 0], [-1, 0], [0, -9]])
    # All candidates are preferred by their logits minus the cost.
    found = run(lambda *a: expand(a[0], a[1], a[0] - a[2]), logits, before, cost)
    # Ties are ordered by hypothesis, then by token.
    assert found.parents[0].tolist() == [0, 0, 0, 1]
    assert found.tokens[0].tolist() == [0, 1, 2, 0]
    # Impossible tokens stay impossible.
    assert found.log_probs[1].tolist() == [-1.0, -INFINITY, -INFINITY, -INFINITY]
    assert (found.parents[1, 0], found.tokens[1, 0]) == (0, 0)
    # The choice is by preference, and the log probability by logits.
    assert found.tokens[2].tolist() == [1, 0, 1, 0]
    expected = np.log([1 / 4, 1 / 2, 1 / 4, 1 / 2]) - [0, 0, 9, 9]
    np.testing.assert_allclose(found.log_probs[2], expected, rtol=1e-6)


def test_constraint_may_prefer_tokens_beyond_probability_one():
    # Token 1 after the second hypothesis is preferred, by 3. Both hypotheses have probability 1.
    logits = np.log(np.full((1, 2, 2), 0.5, np.float32))
    preferred = logits + np.float32([[[0.0, 2.0], [0.0, 3.0]]])
    settings = beam(constraints=(lambda logits, context: preferred,), eos_id=0)
    log_probs = np.zeros((1, 2), np.float32)
    alive, _ = run(functools.partial(choose, settings), logits, preferred, log_probs, NOT_YET)
    assert alive.parents.tolist() == [[1, 0]]
    np.testing.assert_allclose(alive.log_probs, np.log([[0.5, 0.5]]), rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "at_limit", "alive", "ended"),
    [
        ({}, False, [-2.0, -4.0], [-1.0, -3.0]),
        ({"ends_within": "N"}, False, [-2.0, -4.0], [-1.0, -INFINITY]),
        ({"unfinished": "compete"}, True, [-INFINITY, -INFINITY], [-1.0, -2.0]),
        ({"unfinished": "compete"}, False, [-2.0, -4.0], [-1.0, -3.0]),
    ],
)
def test_split_separates_alive_and_ended(changes, at_limit, alive, ended):
    candidates = Candidates(
        log_probs=np.float32([[-1.0, -2.0, -3.0, -4.0]] * 2),
        tokens=np.int32([[EOS, 5, EOS, 6]] * 2),
        parents=np.int32([[1, 1, 0, 0]] * 2),
    )
    candidates.log_probs[1] = [-1.0, -4.0, -3.0, -2.0]  # The given order is kept.
    limits = np.array([at_limit] * 2)
    kept, finished = run(functools.partial(split, beam(**changes)), candidates, limits)
    assert kept.log_probs[0].tolist() == alive
    assert finished.log_probs[0].tolist() == ended
    if not at_limit:
        assert kept.log_probs[1].tolist() == [-4.0, -2.0]
        assert (kept.tokens[0].tolist(), kept.parents[0].tolist()) == ([5, 6], [1, 0])
    exists = finished.log_probs[0] > -INFINITY
    ends = [(EOS, 1), (5, 1)] if at_limit else [(EOS, 1), (EOS, 0)]
    found = list(zip(finished.tokens[0], finished.parents[0], strict=True))
    assert found[: exists.sum()] == ends[: exists.sum()]


def test_groups_penalize_tokens_of_earlier_groups():
    # Three equal groups of one: 0.5, 0.3, 0.2 for tokens 2, 3, 4. A token costs log 2 for each
    # group that chose it: the second group compares 0.25, 0.3, 0.2, the third 0.25, 0.15, 0.2.
    with np.errstate(divide="ignore"):
        logits = np.log(np.float32([[[0.0, 0.0, 0.5, 0.3, 0.2]] * 3] * 2))
    # In the second sentence, the first group has no hypothesis, which is ignored.
    log_probs = np.float32([[0, 0, 0], [-INFINITY, 0, 0]])
    diverse = beam(beam_size=3, diversity_groups=3, diversity_penalty=float(np.log(2)))
    at_limit = np.array([False, False])
    alive, _ = run(functools.partial(choose, diverse), logits, logits, log_probs, at_limit)
    assert alive.tokens[0].tolist() == [2, 3, 2]
    assert alive.parents[0].tolist() == [0, 1, 2]
    np.testing.assert_allclose(alive.log_probs[0], np.log([0.5, 0.3, 0.5]), rtol=1e-6)
    assert alive.tokens[1, 1:].tolist() == [2, 3]


def test_only_finished_sentences_are_masked():
    before = Candidates(
        log_probs=np.float32([[0.0, -INFINITY]] * 2),
        tokens=np.zeros((2, 2), np.int32),
        parents=np.zeros((2, 2), np.int32),
    )
    new = Candidates(
        log_probs=np.full((2, 2), -5.0, np.float32),
        tokens=np.full((2, 2), 4, np.int32),
        parents=np.ones((2, 2), np.int32),
    )
    done = np.array([True, False])
    alive, ended = run(mask_finished, done, before, new, new, pad_id=PAD)
    assert alive.log_probs.tolist() == [[0.0, -INFINITY], [-5.0, -5.0]]
    assert alive.tokens.tolist() == [[PAD, PAD], [4, 4]]
    assert alive.parents.tolist() == [[0, 1], [1, 1]]
    assert ended.log_probs.tolist() == [[-INFINITY, -INFINITY], [-5.0, -5.0]]


def finished(scores: list[float], token: int) -> BeamResult:
    return BeamResult(
        tokens=np.full((1, len(scores), 3), token, np.int32),
        lengths=np.full((1, len(scores)), 3, np.int32),
        scores=np.float32([scores]),
        log_probs=2 * np.float32([scores]),
    )


@pytest.mark.parametrize(
    ("groups", "newer", "scores", "tokens"),
    [
        (1, [-2.0, -1.0], [-1.0, -1.0], [7, 8]),  # The best; of equal ones the older.
        (2, [-2.0, -2.0], [-1.0, -2.0], [7, 8]),  # Groups are separate.
    ],
)
def test_merge_finished_keeps_the_best(groups, newer, scores, tokens):
    older, newer = finished([-1.0, -3.0], token=7), finished(newer, token=8)
    merged = run(merge_finished, older, newer, groups=groups)
    assert merged.scores.tolist() == [scores]
    assert merged.log_probs.tolist() == [[2 * score for score in scores]]
    assert merged.tokens[0, :, 0].tolist() == tokens


def test_finalize_falls_back_to_alive_hypotheses():
    settings = beam(penalty="power", length_penalty=2.0)

    def finalize(older):
        state = settings.start((), np.array([2]), 3)
        log_probs = jnp.array([[-2.0, -INFINITY]])
        state = dataclasses.replace(
            state,
            step=jnp.array(2),
            alive_tokens=jnp.array([[[5, 5, PAD]] * 2]),
            alive=dataclasses.replace(state.alive, log_probs=log_probs),
            finished=older,
        )
        return settings.finalize(state)

    none = finished([-INFINITY, -INFINITY], token=PAD)
    assert hypotheses(run(finalize, none), 0) == [(-0.5, -2.0, (5, 5))]
    one = finished([-INFINITY, -9.0], token=7)
    assert hypotheses(run(finalize, one), 0) == [(-9.0, -18.0, (7, 7, 7))]
