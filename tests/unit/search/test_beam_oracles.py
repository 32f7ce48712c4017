"""Beam search against exhaustive search and against a beam in plain Python, with every option.

A case is one sentence: its own tree, its own limit, its own prefix to start with. Fifty of them
are searched at a time, under settings drawn for all fifty. Everything follows from the seed.
"""

import dataclasses
from typing import NamedTuple

import jax
import numpy as np
import pytest

from jaxformer.search import BeamSearch

from ...profiles import by_profile
from .oracles import (
    PAD,
    Tokens,
    Tree,
    advance_tree,
    beam,
    exhaustive,
    hypotheses,
    numbers,
    plain_beam,
    score,
    search_patiently,
    search_tree,
    start_tree,
    tokens_of,
    tree_logits,
    without_free_end,
)

SENTENCES = 50
# By day, every value of every option of narrow beams occurs, and nearly every one of wide beams.
WIDE_SEEDS = by_profile([340, 382, 258], nightly=range(100))
NARROW_SEEDS = by_profile([254, 140, 43, 49, 37], nightly=range(100))

# Vocabulary, maximum limit, and a number of beams that keeps all hypotheses:
# 2 * beams >= vocabulary * (vocabulary - 1)^(limit - 1).
WIDE = [
    (2, 5, 4),
    (3, 4, 12),
    (4, 3, 18),
    (5, 4, 160),
    (5, 5, 640),
]
# Numbers of hypotheses and groups.
NARROW = [
    (1, 1),
    (2, 1),
    (2, 1),
    (3, 1),
    (4, 1),
    (2, 2),
    (3, 3),
    (4, 2),
    (6, 2),
    (6, 3),
]


class Cases(NamedTuple):
    logits: np.ndarray
    limits: np.ndarray
    prefix: np.ndarray | None  # [sentences, 3], or None
    forced: list[Tokens]  # the prefix without padding


def any_cases(seed: int, vocabulary: int, depth: int) -> Cases:
    random = np.random.default_rng([seed, 0])
    drawn = random.integers(0, depth + 3, SENTENCES)
    limits = np.minimum(drawn, depth).astype(np.int32)

    # In half of the cases, no sentence has a prefix.
    lengths = random.integers(0, 4, SENTENCES) * random.integers(0, 2)
    prefix = random.integers(1, vocabulary, (SENTENCES, 3)).astype(np.int32)
    is_padding = np.arange(3) >= lengths[:, None]
    prefix[is_padding] = PAD
    forced = []
    for row, length in zip(prefix.tolist(), lengths, strict=True):
        forced.append(tuple(row[:length]))

    return Cases(
        logits=tree_logits(seed, SENTENCES, vocabulary, depth=depth),
        limits=limits,
        prefix=prefix if lengths.any() else None,
        forced=forced,
    )


def any_beam(seed: int, sizes: list[tuple[int, int]]) -> BeamSearch:
    """Returns a random search with one of these sizes; only narrow beams get every option."""
    random = np.random.default_rng([seed, 1])

    def one_of(*choices):
        return choices[random.integers(len(choices))]

    beam_size, groups = one_of(*sizes)
    narrow = {
        "diversity_groups": groups,
        "diversity_penalty": one_of(0.0, 0.5, 2.0, 32.0) if groups > 1 else 0.0,
        "ends_within": one_of("2N", "N"),
        "early_stop": one_of("proven", "proven", "likely", "full"),
    }
    if narrow["early_stop"] == "full":
        narrow["ends_within"] = "N"

    options = narrow if sizes is NARROW else {}
    return beam(
        beam_size=beam_size,
        penalty=one_of("gnmt", "gnmt", "power", "none"),
        length_penalty=one_of(0.0, 0.6, 1.0, 2.0, 4.0),
        min_length=one_of(0, 0, 0, 1, 3),
        no_repeat_ngram=one_of(0, 0, 0, 1, 2, 3),
        unfinished=one_of("fallback", "compete", "end"),
        **options,
    )


def assert_same(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize("seed", WIDE_SEEDS)
def test_a_beam_wide_enough_is_exhaustive(seed):
    vocabulary, depth, beams = WIDE[seed % len(WIDE)]
    cases = any_cases(seed, vocabulary, depth)
    wide = any_beam(seed, [(beams, 1)])

    result = search_tree(wide, cases.logits, cases.limits, prefix=cases.prefix)

    patient = search_patiently(wide, cases.logits, cases.limits, prefix=cases.prefix)
    assert_same(result, patient)
    for sentence, limit in enumerate(cases.limits.tolist()):
        tree = Tree(cases.logits[sentence])
        found = hypotheses(result, sentence)
        forced = cases.forced[sentence]
        expected = exhaustive(tree, wide, limit, forced=forced)[:beams]
        # Equal scores may come in any order: compare the scores, then the score of each hypothesis.
        found_scores = [value for value, _, _ in found]
        scores = [value for value, _, _ in expected]
        np.testing.assert_allclose(found_scores, scores, rtol=1e-5, atol=1e-5)
        assert len(set(tokens_of(found))) == len(found)
        for value, log_prob, tokens in found:
            of_tree = tree.log_prob(without_free_end(wide, tokens, limit))
            assert log_prob == pytest.approx(of_tree, rel=1e-5, abs=1e-5)
            expected_score = score(wide, log_prob, len(tokens))
            assert value == pytest.approx(expected_score, rel=1e-5)


@pytest.mark.parametrize("seed", NARROW_SEEDS)
def test_equals_a_beam_in_plain_python(seed):
    cases = any_cases(seed, vocabulary=2 + seed % 4, depth=5)
    narrow = any_beam(seed, NARROW)

    result = search_tree(narrow, cases.logits, cases.limits, prefix=cases.prefix)

    for sentence, limit in enumerate(cases.limits.tolist()):
        tree = Tree(cases.logits[sentence])
        found = hypotheses(result, sentence)
        expected = plain_beam(tree, narrow, limit, forced=cases.forced[sentence])
        assert tokens_of(found) == tokens_of(expected)
        np.testing.assert_allclose(numbers(found), numbers(expected), rtol=1e-5, atol=1e-5)

    if narrow.early_stop == "proven":
        assert_stops_without_effect(narrow, cases)


def assert_stops_without_effect(narrow, cases):
    """Stopping early changes none of the n best hypotheses that are needed, of any number."""
    patient = search_patiently(narrow, cases.logits, cases.limits, prefix=cases.prefix)
    for n_best in range(narrow.beam_size + 1):
        found = search_tree(
            narrow,
            cases.logits,
            cases.limits,
            prefix=cases.prefix,
            n_best=np.int32(n_best),
        )
        # No number needs all.
        needed = n_best or narrow.beam_size
        for ours, theirs in zip(found, patient, strict=True):
            np.testing.assert_array_equal(ours[:, :needed], theirs[:, :needed])


def test_the_best_alone_is_found_sooner():
    settings = beam(penalty="power", length_penalty=1.0)
    logits = tree_logits(seed=1, sentences=500, vocabulary=3, depth=5)
    limits = np.full(500, 5, np.int32)

    def done_after_three_tokens(n_best):
        start = start_tree(settings, logits, limits, n_best=n_best)
        state, _ = advance_tree(settings, start, 3)
        return state.done.sum()

    needs_all = done_after_three_tokens(n_best=0)
    needs_one = done_after_three_tokens(n_best=1)
    assert needs_all + 50 < needs_one < 500


def test_stopping_early_changes_nothing_where_stopping_hastily_does():
    # From the third token on, continuations are almost certain, and the longest may still win.
    logits = tree_logits(seed=1, sentences=500, vocabulary=3, depth=5)
    logits[:, 1 + 3 :] *= 8
    limits = np.full(500, 5, np.int32)
    careful = beam(penalty="power", length_penalty=1.0, beam_size=4, diversity_groups=2)
    hasty = dataclasses.replace(careful, early_stop="likely")

    result = search_tree(careful, logits, limits)
    assert_same(result, search_patiently(careful, logits, limits))

    other = search_tree(hasty, logits, limits)
    changed = (result.scores != other.scores).any(axis=1)
    assert changed.sum() >= 30
