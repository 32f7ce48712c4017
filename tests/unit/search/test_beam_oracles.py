"""Beam search against exhaustive search and against a beam in plain Python, with every option.

A case is one sentence: its own tree, its own limit, its own prefix to start with. Fifty of them
are searched at a time, under settings drawn for all fifty. Everything follows from the seed.
"""

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
)

SENTENCES = 50
# By day, every value of every option of narrow beams occurs, and nearly every one of wide beams.
WIDE_SEEDS = by_profile([340, 382, 258], nightly=range(100))
NARROW_SEEDS = by_profile([254, 140, 43, 49, 37], nightly=range(100))

# Vocabulary, maximum limit, and a number of beams that keeps all hypotheses:
# 2 * beams >= vocabulary * (vocabulary - 1)^(limit - 1).
WIDE = [(2, 5, 4), (3, 4, 12), (4, 3, 18), (5, 4, 160), (5, 5, 640)]
# Numbers of hypotheses and groups.
NARROW = [(1, 1), (2, 1), (2, 1), (3, 1), (4, 1), (2, 2), (3, 3), (4, 2), (6, 2), (6, 3)]


class Cases(NamedTuple):
    logits: np.ndarray
    limits: np.ndarray
    prefix: np.ndarray | None  # [sentences, 3], or None
    forced: list[Tokens]  # the prefix without padding


def any_cases(seed: int, vocabulary: int, depth: int) -> Cases:
    random = np.random.default_rng([seed, 0])
    limits = np.minimum(random.integers(0, depth + 3, SENTENCES), depth).astype(np.int32)
    lengths = random.integers(0, 4, SENTENCES) * random.integers(0, 2)
    prefix = random.integers(1, vocabulary, (SENTENCES, 3)).astype(np.int32)  # No padding.
    prefix[np.arange(3) >= lengths[:, None]] = PAD
    return Cases(
        logits=tree_logits(seed, SENTENCES, vocabulary, depth),
        limits=limits,
        prefix=prefix if lengths.any() else None,
        forced=[tuple(row[:n].tolist()) for row, n in zip(prefix, lengths, strict=True)],
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
    return beam(
        beam_size=beam_size,
        penalty=one_of("gnmt", "gnmt", "power", "none"),
        length_penalty=one_of(0.0, 0.6, 1.0, 2.0, 4.0),
        min_length=one_of(0, 0, 0, 1, 3),
        no_repeat_ngram=one_of(0, 0, 0, 1, 2, 3),
        unfinished=one_of("fallback", "compete"),
        **(narrow if sizes is NARROW else {}),
    )


@pytest.mark.parametrize("seed", WIDE_SEEDS)
def test_a_beam_wide_enough_is_exhaustive(seed):
    vocabulary, depth, beams = WIDE[seed % len(WIDE)]
    cases, wide = any_cases(seed, vocabulary, depth), any_beam(seed, [(beams, 1)])
    result = search_tree(wide, *cases[:3])
    jax.tree.map(np.testing.assert_array_equal, result, search_patiently(wide, *cases[:3]))
    for sentence, limit in enumerate(cases.limits.tolist()):
        tree = Tree(cases.logits[sentence])
        found = hypotheses(result, sentence)
        expected = exhaustive(tree, wide, limit, cases.forced[sentence])[:beams]
        # Equal scores may come in any order: compare the scores, then the score of each hypothesis.
        np.testing.assert_allclose(
            [h[0] for h in found], [h[0] for h in expected], rtol=1e-5, atol=1e-5
        )
        assert len(set(tokens_of(found))) == len(found)
        for value, log_prob, tokens in found:
            assert log_prob == pytest.approx(tree.log_prob(tokens), rel=1e-5, abs=1e-5)
            assert value == pytest.approx(score(wide, log_prob, len(tokens)), rel=1e-5)


@pytest.mark.parametrize("seed", NARROW_SEEDS)
def test_equals_a_beam_in_plain_python(seed):
    cases, narrow = any_cases(seed, 2 + seed % 4, 5), any_beam(seed, NARROW)
    result = search_tree(narrow, *cases[:3])
    if narrow.early_stop == "proven":
        patient = search_patiently(narrow, *cases[:3])
        for n_best in range(narrow.beam_size + 1):
            found = search_tree(narrow, *cases[:3], n_best=np.int32(n_best))
            for ours, theirs in zip(found, patient, strict=True):
                needed = np.s_[:, : n_best or None]
                np.testing.assert_array_equal(ours[needed], theirs[needed])
    for sentence, limit in enumerate(cases.limits.tolist()):
        found = hypotheses(result, sentence)
        expected = plain_beam(Tree(cases.logits[sentence]), narrow, limit, cases.forced[sentence])
        assert tokens_of(found) == tokens_of(expected)
        np.testing.assert_allclose(numbers(found), numbers(expected), rtol=1e-5, atol=1e-5)


def test_the_best_alone_is_found_sooner():
    settings, limits = beam(penalty="power", length_penalty=1.0), np.full(500, 5, np.int32)
    starts = (start_tree(settings, tree_logits(1, 500, 3, 5), limits, n_best=n) for n in (0, 1))
    all_, best = (advance_tree(settings, start, 3)[0].done.sum() for start in starts)
    assert all_ + 50 < best < 500


def test_stopping_early_changes_nothing_where_stopping_hastily_does():
    # From the third token on, continuations are almost certain, and the longest may still win.
    logits = tree_logits(1, 500, 3, 5)
    logits[:, 1 + 3 :] *= 8
    limits = np.full(500, 5, np.int32)
    changes = {"penalty": "power", "length_penalty": 1.0, "beam_size": 4, "diversity_groups": 2}
    careful, hasty = beam(**changes), beam(**changes, early_stop="likely")
    result = search_tree(careful, logits, limits)
    jax.tree.map(np.testing.assert_array_equal, result, search_patiently(careful, logits, limits))
    other = search_tree(hasty, logits, limits)
    assert (result.scores != other.scores).any(axis=1).sum() >= 30
