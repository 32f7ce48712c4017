"""Contrastive search against an enumeration of all hypotheses in NumPy (Li et al. 2023)."""

import dataclasses
import functools
import itertools

import jax
import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.search import contrast
from jaxformer.search.penalties import length_penalties

from .oracles import EOS, INFINITY, PAD, Tree, beam, log, sampling, tree_cache, tree_step

VOCABULARY = 4
LENGTH = 4
ALPHA = 0.3
SENTENCES = 24


def random_logits(seed):
    """Returns logits of every prefix, without tokens that are impossible."""
    num_prefixes = sum(VOCABULARY**level for level in range(LENGTH))
    shape = (SENTENCES, num_prefixes, VOCABULARY)
    normal = np.random.default_rng(seed).normal(size=shape)
    return (2 * normal).astype(np.float32)


EXPERT = random_logits(0)
AMATEUR = random_logits(1)
# Enough for all hypotheses, so that the search is exhaustive.
WIDE = beam(beam_size=40, penalty="power", length_penalty=0.7)


@functools.partial(jax.jit, static_argnames="settings")
def search(settings, expert, amateur, alpha, prefix, n_best):
    size = settings.num_hypotheses
    caches = tree_cache(expert, size), tree_cache(amateur, size)
    limits = [LENGTH] * len(expert)
    state = settings.start(caches, limits, LENGTH, prefix, n_best=n_best, contrast=True)
    step_fn = contrast(tree_step, tree_step, alpha)
    return settings.finalize(settings.advance(step_fn, state, LENGTH))


def found(settings, prefix=None, alpha=ALPHA, n_best=0, expert=EXPERT, amateur=AMATEUR):
    result = search(settings, expert, amateur, np.float32(alpha), prefix, np.int32(n_best))
    return jax.device_get(result)


def expected(sentence, prefix=(), alpha=ALPHA, free_end=False):
    """Returns (score, log probability, tokens) of all hypotheses with EOS, best first.

    With a free end, EOS as the last possible token is allowed, and costs nothing.
    """
    expert = Tree(EXPERT[sentence])
    amateur = Tree(AMATEUR[sentence])
    penalties = length_penalties("power", 0.7, LENGTH)

    finished = []
    for length in range(1, LENGTH + 1):
        for before in itertools.product([0, 2, 3], repeat=length - 1):
            tokens = (*before, EOS)
            paid = before if free_end and length == LENGTH else tokens
            score, log_prob = contrast_scores(expert, amateur, paid, prefix, alpha)
            if score > -INFINITY:
                finished.append((score / penalties[length], log_prob, tokens))
    return sorted(finished, reverse=True)


def contrast_scores(expert, amateur, tokens, prefix, alpha):
    """Returns the score, without penalty, and the log probability of a hypothesis."""
    score = 0.0
    log_prob = 0.0
    for n, token in enumerate(tokens):
        own = expert.log_probs[expert.row(tokens[:n])]
        other = amateur.log_probs[amateur.row(tokens[:n])]

        if n < len(prefix):
            is_possible = token == prefix[n]
        else:
            is_possible = own[token] >= own.max() + np.log(alpha)
        if not is_possible:
            score = -INFINITY

        score += own[token] - other[token]
        log_prob += own[token]
    return score, log_prob


def check(result, sentence, hypotheses):
    scores = result.scores[sentence]
    assert (scores > -INFINITY).sum() == len(hypotheses)
    for n, (score, log_prob, tokens) in enumerate(hypotheses):
        length = result.lengths[sentence, n]
        assert tuple(result.tokens[sentence, n, :length]) == tokens
        np.testing.assert_allclose(scores[n], score, atol=1e-5)
        np.testing.assert_allclose(result.log_probs[sentence, n], log_prob, atol=1e-5)


def test_a_wide_beam_finds_all_plausible_hypotheses():
    result = found(WIDE)
    best = found(WIDE, n_best=1)
    num_positive = 0
    for sentence in range(SENTENCES):
        hypotheses = expected(sentence)
        if not hypotheses:
            continue  # the unfinished ones are returned
        check(result, sentence, hypotheses)
        best_score, _, _ = hypotheses[0]
        num_positive += best_score > 0

        # No hypothesis is proven to be the best one before the limit.
        np.testing.assert_array_equal(best.tokens[sentence, 0], result.tokens[sentence, 0])
    assert num_positive > SENTENCES / 2


def test_an_end_at_the_limit_is_free_for_both_models():
    wide = dataclasses.replace(WIDE, unfinished="end")
    result = found(wide)
    for sentence in range(SENTENCES):
        check(result, sentence, expected(sentence, free_end=True))


def test_a_forced_token_outside_the_plausible_set_is_kept():
    prefix = np.full((SENTENCES, 2), 3, np.int32)
    prefix[: SENTENCES // 2, 1] = PAD  # which forces nothing
    result = found(WIDE, prefix=prefix)
    num_implausible = 0
    for sentence in range(SENTENCES):
        forced = prefix[sentence][prefix[sentence] != PAD]
        hypotheses = expected(sentence, tuple(forced))
        if hypotheses:
            check(result, sentence, hypotheses)
        first = Tree(EXPERT[sentence]).log_probs[0]
        num_implausible += first[3] < first.max() + np.log(ALPHA)
        assert result.tokens[sentence, 0, 0] == 3
    assert num_implausible > SENTENCES / 3


def test_greedy_search_and_the_most_probable_sample_take_the_best_token():
    for settings in (beam(beam_size=1), sampling(num_samples=1, top_k=1)):
        result = found(settings)
        for sentence in range(SENTENCES):
            expert = Tree(EXPERT[sentence])
            amateur = Tree(AMATEUR[sentence])

            tokens = ()
            log_prob = 0.0
            while len(tokens) < LENGTH and EOS not in tokens:
                own = expert.log_probs[expert.row(tokens)]
                other = amateur.log_probs[amateur.row(tokens)]
                plausible = own >= own.max() + np.log(ALPHA)
                scores = np.where(plausible, own - other, -INFINITY)
                token = int(scores.argmax())
                log_prob += own[token]
                tokens += (token,)

            length = result.lengths[sentence, 0]
            assert tuple(result.tokens[sentence, 0, :length]) == tokens
            np.testing.assert_allclose(result.log_probs[sentence, 0], log_prob, atol=1e-5)


def test_alpha_of_one_is_the_expert_and_impossible_tokens_are_never_chosen():
    first = np.tile(log([0.1, 0.0, 0.5, 0.4]), (1, EXPERT.shape[1], 1))
    other = np.tile(log([0.6, 0.4, 0.0, 0.0]), (1, EXPERT.shape[1], 1))
    for alpha in (1.0, 0.0):
        result = found(beam(beam_size=1), alpha=alpha, expert=first, amateur=other)
        assert result.tokens.tolist() == [[[2] * LENGTH]]
        assert np.isfinite(result.scores).all()
        np.testing.assert_allclose(result.log_probs, LENGTH * np.log(0.5), rtol=1e-5)


def test_a_state_without_the_expert_is_refused():
    settings = beam()
    state = settings.start((), [LENGTH], LENGTH)
    with pytest.raises(UserError, match=r"needs start\(\.\.\., contrast=True\), and only that"):
        settings.advance(contrast(tree_step, tree_step), state, LENGTH)


def test_other_vocabularies_are_refused():
    with pytest.raises(UserError, match="expert and amateur must have one vocabulary: got logits"):
        found(beam(), amateur=AMATEUR[:, :, :3])
