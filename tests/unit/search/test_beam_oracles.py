"""Beam search against exhaustive search and against a beam in plain Python, with every option.

A case is one sentence: its own tree, its own limit, its own prefix to start with. Fifty of them
are searched at a time under rules drawn for them together: 500 cases per test, 5,000 at night.
"""

from typing import NamedTuple

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest

from jaxformer.search import Rules

from .oracles import (
    EOS,
    INFINITY,
    PAD,
    Tokens,
    Tree,
    exhaustive,
    hypotheses,
    numbers,
    plain_beam,
    rules,
    score,
    search_patiently,
    search_tree,
    tokens_of,
    tree_logits,
)

SENTENCES = 50
BY_DAY = hypothesis.settings(max_examples=10, derandomize=True)
AT_NIGHT = hypothesis.settings(max_examples=100, derandomize=True)


class Cases(NamedTuple):
    logits: np.ndarray
    limits: np.ndarray
    prefix: np.ndarray | None  # [sentences, 3], or none at all
    forced: list[Tokens]  # the same without padding


@st.composite
def constraints(draw) -> dict:
    penalty = draw(st.sampled_from(["gnmt", "power", "none"]))
    return {
        "penalty": penalty,
        "length_penalty": draw(st.sampled_from([0.0, 0.6, 1.0, 2.0])),
        "min_length": draw(st.sampled_from([0, 0, 1, 3])),
        "no_repeat_ngram": draw(st.sampled_from([0, 0, 1, 2, 3])),
        "unfinished": draw(st.sampled_from(["fallback", "compete"])),
    }


@st.composite
def any_rules(draw) -> Rules:
    size, groups = draw(
        st.sampled_from([(1, 1), (2, 1), (3, 1), (4, 1), (2, 2), (3, 3), (4, 2), (6, 2), (6, 3)])
    )
    cost = draw(st.sampled_from([0.0, 0.5, 32.0])) if groups > 1 else 0.0
    return rules(
        **draw(constraints()),
        beam_size=size,
        diversity_groups=groups,
        diversity_penalty=cost,
        ends_within=draw(st.sampled_from(["2N", "N"])),
        early_stop=draw(st.sampled_from(["proven", "proven", "likely", "full"])),
    )


def cases(vocabulary: int, depth: int, seed: int, exact: bool, prefixes: bool) -> Cases:
    random = np.random.default_rng(seed)
    limits = random.integers(0, depth + 1, SENTENCES).astype(np.int32)
    lengths = random.integers(0, 4, SENTENCES) if prefixes else np.zeros(SENTENCES, int)
    prefix = random.integers(1, vocabulary, (SENTENCES, 3)).astype(np.int32)  # never padding
    prefix[np.arange(3) >= lengths[:, None]] = PAD
    return Cases(
        logits=tree_logits(seed, SENTENCES, vocabulary, depth, exact),
        limits=limits,
        prefix=prefix if prefixes else None,
        forced=[tuple(row[:n].tolist()) for row, n in zip(prefix, lengths, strict=True)],
    )


data = {"seed": st.integers(0, 2**32 - 1), "exact": st.booleans(), "prefixes": st.booleans()}


def check_wide_beam(shape: tuple[int, int, int], settings: dict, **drawn) -> None:
    vocabulary, depth, beams = shape
    wide = rules(beam_size=beams, **settings)
    sentences = cases(vocabulary, depth, **drawn)
    result = search_tree(wide, *sentences[:3])
    patient = search_patiently(wide, *sentences[:3])
    jax.tree.map(np.testing.assert_array_equal, result, patient)
    for sentence, limit in enumerate(sentences.limits.tolist()):
        tree = Tree(sentences.logits[sentence])
        found = hypotheses(result, sentence)
        expected = exhaustive(tree, wide, limit, sentences.forced[sentence])[:beams]
        # Any order among equal scores is right: compare the scores, then each with its tokens.
        np.testing.assert_allclose(
            [h[0] for h in found], [h[0] for h in expected], rtol=1e-5, atol=1e-5
        )
        assert len(set(tokens_of(found))) == len(found)
        for value, log_prob, tokens in found:
            assert log_prob == pytest.approx(tree.log_prob(tokens), rel=1e-5, abs=1e-5)
            assert value == pytest.approx(score(wide, log_prob, len(tokens)), rel=1e-5)


def check_narrow_beam(vocabulary: int, narrow: Rules, **drawn) -> None:
    sentences = cases(vocabulary, 5, **drawn)
    result = search_tree(narrow, *sentences[:3])
    if narrow.early_stop == "proven":
        patient = search_patiently(narrow, *sentences[:3])
        jax.tree.map(np.testing.assert_array_equal, result, patient)
    for sentence, limit in enumerate(sentences.limits.tolist()):
        tree = Tree(sentences.logits[sentence])
        found = hypotheses(result, sentence)
        expected = plain_beam(tree, narrow, limit, sentences.forced[sentence])
        assert tokens_of(found) == tokens_of(expected)
        np.testing.assert_allclose(numbers(found), numbers(expected), rtol=1e-5, atol=1e-5)


# Vocabulary, greatest limit, and beams enough to lose nothing:
# 2 * beams >= vocabulary * (vocabulary - 1)^(limit - 1).
wide = st.sampled_from([(2, 5, 4), (3, 4, 12), (4, 3, 18), (5, 4, 160), (5, 5, 640)])


@pytest.mark.slow
@BY_DAY
@hypothesis.given(shape=wide, settings=constraints(), **data)
def test_a_beam_wide_enough_is_exhaustive(shape, settings, seed, exact, prefixes):
    check_wide_beam(shape, settings, seed=seed, exact=exact, prefixes=prefixes)


@pytest.mark.nightly
@AT_NIGHT
@hypothesis.given(shape=wide, settings=constraints(), **data)
def test_a_beam_wide_enough_is_exhaustive_at_night(shape, settings, seed, exact, prefixes):
    check_wide_beam(shape, settings, seed=seed, exact=exact, prefixes=prefixes)


@pytest.mark.slow
@BY_DAY
@hypothesis.given(vocabulary=st.integers(2, 5), narrow=any_rules(), **data)
def test_equals_a_beam_in_plain_python(vocabulary, narrow, seed, exact, prefixes):
    check_narrow_beam(vocabulary, narrow, seed=seed, exact=exact, prefixes=prefixes)


@pytest.mark.nightly
@AT_NIGHT
@hypothesis.given(vocabulary=st.integers(2, 5), narrow=any_rules(), **data)
def test_equals_a_beam_in_plain_python_at_night(vocabulary, narrow, seed, exact, prefixes):
    check_narrow_beam(vocabulary, narrow, seed=seed, exact=exact, prefixes=prefixes)


@hypothesis.settings(max_examples=12, derandomize=True)
@hypothesis.given(seed=st.integers(0, 2**32 - 1), exact=st.booleans())
def test_greedy_is_argmax(seed, exact):
    # To halves, so that the greatest logit is often shared by several tokens.
    logits = np.round(2 * tree_logits(seed, 8, 5, 4, exact)) / 2 + 0.0  # no -0.0
    greedy = rules(beam_size=1, length_penalty=0.6)
    result = search_tree(greedy, logits, np.full(8, 4, np.int32))
    for sentence in range(8):
        tree, tokens = Tree(logits[sentence]), ()
        while len(tokens) < 4 and EOS not in tokens:
            tokens += (int(np.argmax(tree.logits[tree.row(tokens)])),)
        found = hypotheses(result, sentence)
        assert tokens_of(found) == ([tokens] if tree.log_prob(tokens) > -INFINITY else [])
