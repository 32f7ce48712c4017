"""Choosing candidates in beam search, and merging finished hypotheses."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.search import BeamResult
from jaxformer.search.beam import merge_finished
from jaxformer.search.candidates import choose, expand, mask_finished, split
from jaxformer.search.state import Candidates

from .oracles import EOS, INFINITY, PAD, beam, hypotheses

NOT_YET = jnp.array([False])


def test_expand_in_bfloat16_range_is_normalized_in_float32():
    logits = jax.random.normal(jax.random.key(1), (1, 1, 4000), jnp.bfloat16).astype(jnp.float32)
    candidates = expand(logits, jnp.zeros((1, 1)), logits)
    exact = np.asarray(logits, np.float64)
    expected = exact.max() - np.log(np.exp(exact).sum())
    assert candidates.log_probs.dtype == jnp.float32
    assert candidates.log_probs[0, 0] == pytest.approx(expected, rel=1e-6)


def test_expand_orders_ties_by_hypothesis_then_token():
    logits = jnp.zeros((1, 2, 3))
    candidates = expand(logits, jnp.zeros((1, 2)), logits)
    assert candidates.parents.tolist() == [[0, 0, 0, 1]]
    assert candidates.tokens.tolist() == [[0, 1, 2, 0]]


def test_expand_keeps_impossible_tokens_impossible():
    logits = jnp.array([[[0.0, -INFINITY], [-INFINITY, -INFINITY]]])
    candidates = expand(logits, jnp.array([[-1.0, 0.0]]), logits)
    assert candidates.log_probs.tolist() == [[-1.0, -INFINITY, -INFINITY, -INFINITY]]
    assert (candidates.parents[0, 0], candidates.tokens[0, 0]) == (0, 0)


def test_expand_chooses_by_preference_and_scores_by_logits():
    # Probabilities 1/2, 1/4, 1/4. The first costs log 4, so it comes last; the third is forbidden.
    logits = jnp.log(jnp.array([[[2.0, 1.0, 1.0]]]))
    preferred = logits - jnp.array([jnp.log(4.0), 0.0, INFINITY])
    candidates = expand(
        jnp.repeat(logits, 2, axis=1), jnp.array([[0.0, -9.0]]), jnp.repeat(preferred, 2, axis=1)
    )
    assert candidates.tokens.tolist() == [[1, 0, 1, 0]]
    expected = np.log([[1 / 4, 1 / 2, 1 / 4, 1 / 2]]) - [[0, 0, 9, 9]]
    np.testing.assert_allclose(candidates.log_probs, expected, rtol=1e-6)


def test_constraint_may_prefer_tokens_beyond_probability_one():
    # Token 1 after the second hypothesis is preferred, by 3. Both hypotheses have probability 1.
    logits = jnp.log(jnp.full((1, 2, 2), 0.5))
    preferred = logits + jnp.array([[[0.0, 2.0], [0.0, 3.0]]])
    settings = beam(constraints=(lambda logits, context: preferred,), eos_id=0)
    alive, _ = choose(settings, logits, preferred, jnp.zeros((1, 2)), NOT_YET)
    assert alive.parents.tolist() == [[1, 0]]
    np.testing.assert_allclose(alive.log_probs, np.log([[0.5, 0.5]]), rtol=1e-6)


CANDIDATES = Candidates(
    log_probs=jnp.array([[-1.0, -2.0, -3.0, -4.0]]),
    tokens=jnp.array([[EOS, 5, EOS, 6]]),
    parents=jnp.array([[1, 1, 0, 0]]),
)


def test_split_separates_alive_and_ended():
    alive, ended = split(beam(), CANDIDATES, NOT_YET)
    assert alive.log_probs.tolist() == [[-2.0, -4.0]]
    assert (alive.tokens.tolist(), alive.parents.tolist()) == ([[5, 6]], [[1, 0]])
    assert ended.log_probs.tolist() == [[-1.0, -3.0]]
    assert (ended.tokens.tolist(), ended.parents.tolist()) == ([[EOS, EOS]], [[1, 0]])


def test_split_may_end_only_the_first_candidates():
    alive, ended = split(beam(ends_within="N"), CANDIDATES, NOT_YET)
    assert alive.log_probs.tolist() == [[-2.0, -4.0]]
    assert ended.log_probs.tolist() == [[-1.0, -INFINITY]]


def test_split_may_end_all_candidates_at_the_limit():
    competing = beam(unfinished="compete")
    alive, ended = split(competing, CANDIDATES, jnp.array([True]))
    assert alive.log_probs.tolist() == [[-INFINITY, -INFINITY]]
    assert ended.log_probs.tolist() == [[-1.0, -2.0]]
    assert ended.tokens.tolist() == [[EOS, 5]]
    assert split(competing, CANDIDATES, NOT_YET)[0].log_probs.tolist() == [[-2.0, -4.0]]


def test_split_keeps_the_given_order():
    swapped = dataclasses.replace(CANDIDATES, log_probs=jnp.array([[-1.0, -4.0, -3.0, -2.0]]))
    assert split(beam(), swapped, NOT_YET)[0].log_probs.tolist() == [[-4.0, -2.0]]


def test_groups_penalize_tokens_of_earlier_groups():
    # Three equal groups of one: 0.5, 0.3, 0.2 for tokens 2, 3, 4. A token costs log 2 for each
    # group that chose it: the second group compares 0.25, 0.3, 0.2, the third 0.25, 0.15, 0.2.
    logits = jnp.log(jnp.array([0.0, 0.0, 0.5, 0.3, 0.2]))
    logits = jnp.broadcast_to(logits, (1, 3, 5))
    diverse = beam(beam_size=3, diversity_groups=3, diversity_penalty=float(np.log(2)))
    alive, _ = choose(diverse, logits, logits, jnp.zeros((1, 3)), NOT_YET)
    assert alive.tokens.tolist() == [[2, 3, 2]]
    assert alive.parents.tolist() == [[0, 1, 2]]
    np.testing.assert_allclose(alive.log_probs, np.log([[0.5, 0.3, 0.5]]), rtol=1e-6)


def test_groups_ignore_hypotheses_that_do_not_exist():
    logits = jnp.log(jnp.array([0.0, 0.0, 0.5, 0.3, 0.2]))
    logits = jnp.broadcast_to(logits, (1, 2, 5))
    diverse = beam(diversity_groups=2, diversity_penalty=9.0)
    alive, _ = choose(diverse, logits, logits, jnp.array([[-INFINITY, 0.0]]), NOT_YET)
    assert alive.tokens[0, 1] == 2


def test_only_finished_sentences_are_masked():
    before = beam().start((), jnp.array([0, 3]), 3)  # The first sentence starts done.
    new = Candidates(
        log_probs=jnp.full((2, 2), -5.0),
        tokens=jnp.full((2, 2), 4, jnp.int32),
        parents=jnp.ones((2, 2), jnp.int32),
    )
    alive, ended = mask_finished(before.done, before.alive, new, new, PAD)
    assert alive.log_probs.tolist() == [[0.0, -INFINITY], [-5.0, -5.0]]
    assert alive.tokens.tolist() == [[PAD, PAD], [4, 4]]
    assert alive.parents.tolist() == [[0, 1], [1, 1]]
    assert ended.log_probs.tolist() == [[-INFINITY, -INFINITY], [-5.0, -5.0]]


def finished(scores: list[float], token: int) -> BeamResult:
    return BeamResult(
        tokens=jnp.full((1, len(scores), 3), token, jnp.int32),
        lengths=jnp.full((1, len(scores)), 3, jnp.int32),
        scores=jnp.array([scores]),
        log_probs=2 * jnp.array([scores]),
    )


def test_merge_finished_keeps_the_best_and_prefers_the_older():
    merged = merge_finished(finished([-1.0, -3.0], token=7), finished([-2.0, -1.0], token=8), 1)
    assert merged.scores.tolist() == [[-1.0, -1.0]]
    assert merged.log_probs.tolist() == [[-2.0, -2.0]]
    assert merged.tokens[0, :, 0].tolist() == [7, 8]


def test_merge_finished_keeps_groups_separate():
    merged = merge_finished(finished([-1.0, -3.0], token=7), finished([-2.0, -2.0], token=8), 2)
    assert merged.scores.tolist() == [[-1.0, -2.0]]
    assert merged.tokens[0, :, 0].tolist() == [7, 8]


def test_finalize_falls_back_to_alive_hypotheses():
    settings = beam(penalty="power", length_penalty=2.0)
    state = settings.start((), jnp.array([2]), 3)
    state = dataclasses.replace(
        state,
        step=jnp.array(2),
        alive_tokens=jnp.full((1, 2, 3), 5, jnp.int32).at[:, :, 2].set(PAD),
        alive=dataclasses.replace(state.alive, log_probs=jnp.array([[-2.0, -INFINITY]])),
    )
    assert hypotheses(settings.finalize(state), 0) == [(-0.5, -2.0, (5, 5))]
    state = dataclasses.replace(state, finished=finished([-INFINITY, -9.0], token=7))
    assert hypotheses(settings.finalize(state), 0) == [(-9.0, -18.0, (7, 7, 7))]
