"""Sampling: exact distributions by chi-square, independence of the batch, the model's scores."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxformer.errors import UserError
from jaxformer.search import BeamResult, Sampling, sample, take_sentences
from jaxformer.search.sampling import draw, truncate
from jaxformer.search.state import SampleState

from .oracles import (
    BOS,
    CAPACITY,
    EOS,
    INFINITY,
    PAD,
    Tree,
    hypotheses,
    permitted,
    tokens_of,
    tree_cache,
    tree_logits,
    tree_step,
)


def sampling(**changes) -> Sampling:
    settings = {"num_samples": 2, "length_penalty": 0.0, "bos_id": BOS, "eos_id": EOS}
    return Sampling(**{**settings, "pad_id": PAD, **changes})


def keys(sentences: int) -> jax.Array:
    return jax.random.split(jax.random.key(0), sentences)


@functools.partial(jax.jit, static_argnames="settings")
def advance_tree(
    settings: Sampling, state: SampleState, until: jax.Array
) -> tuple[SampleState, BeamResult]:
    state = settings.advance(tree_step, state, until)
    return state, settings.finalize(state)


def start_tree(settings: Sampling, keys, logits, limits, prefix=None) -> SampleState:
    cache = tree_cache(jnp.asarray(logits), settings.num_samples)
    prefix = None if prefix is None else jnp.asarray(prefix)
    return settings.start(cache, jnp.asarray(limits), CAPACITY, prefix, keys=keys)


def sample_tree(settings: Sampling, keys, logits, limits, prefix=None) -> BeamResult:
    return advance_tree(settings, start_tree(settings, keys, logits, limits, prefix), CAPACITY)[1]


# Takes p^(1/temperature), keeps the k most probable tokens, renormalizes, keeps the fewest tokens
# that together have top_p, renormalizes; in NumPy, float64.
def expected_distribution(p, temperature: float, top_k: int, top_p: float) -> np.ndarray:
    p = np.asarray(p, np.float64) ** (1 / temperature)
    order = np.argsort(-p, kind="stable")
    kept = order[: top_k or len(p)]
    p = np.where(np.isin(np.arange(len(p)), kept), p, 0.0)
    p /= p.sum()
    for n in range(1, len(kept) + 1):
        if p[order[:n]].sum() >= top_p - 1e-9:
            break
    p = np.where(np.isin(np.arange(len(p)), order[:n]), p, 0.0)
    return p / p.sum()


PROBABILITIES = [0.05, 0.3, 0.2, 0.02, 0.25, 0.0, 0.08, 0.1]
CUTS = [
    {"temperature": 1.0, "top_k": 0, "top_p": 1.0},
    {"temperature": 0.5, "top_k": 0, "top_p": 1.0},
    {"temperature": 2.0, "top_k": 3, "top_p": 1.0},
    {"temperature": 1.0, "top_k": 0, "top_p": 0.7},  # 0.3 + 0.25 < 0.7 <= 0.3 + 0.25 + 0.2
    {"temperature": 1.5, "top_k": 5, "top_p": 0.6},
    {"temperature": 1.0, "top_k": 0, "top_p": 0.01},  # At least one token is kept.
    {"temperature": 1.0, "top_k": 99, "top_p": 1.0},  # More than the vocabulary.
]


@pytest.mark.parametrize("cut", CUTS)
def test_truncation_keeps_the_right_tokens(cut: dict):
    shuffled = np.random.default_rng(0).permuted([[PROBABILITIES] * 3] * 2, axis=2)
    kept, tokens = truncate(
        sampling(**cut), jnp.log(jnp.array(shuffled)) / cut["temperature"] + 3.0
    )
    probabilities = np.zeros(shuffled.shape)
    tokens = np.broadcast_to(np.arange(8), shuffled.shape) if tokens is None else tokens
    np.put_along_axis(probabilities, np.asarray(tokens), jax.nn.softmax(kept), axis=2)
    expected = np.apply_along_axis(expected_distribution, 2, shuffled, **cut)
    np.testing.assert_allclose(probabilities, expected, rtol=1e-5)


@pytest.mark.parametrize("cut", [CUTS[0], CUTS[4]])
def test_draws_have_the_exact_distribution(cut: dict):
    draws = 20_000
    logits = jnp.broadcast_to(jnp.log(jnp.array(PROBABILITIES)) + 3.0, (draws // 10, 10, 8))
    settings = sampling(num_samples=10, **cut)
    tokens = jax.jit(functools.partial(draw, settings))(logits, keys(draws // 10), jnp.array(4))
    counts = np.bincount(np.asarray(tokens).ravel(), minlength=8)
    expected = draws * expected_distribution(PROBABILITIES, **cut)
    possible = expected > 0
    assert counts[~possible].sum() == 0
    # The seeds are fixed, so the test is deterministic.
    assert scipy.stats.chisquare(counts[possible], expected[possible]).pvalue > 0.01


def test_whole_hypotheses_have_the_exact_distribution():
    """Covers all sequences of a small tree, so draws of different steps are independent."""
    logits = 1.5 * np.random.default_rng(3).normal(size=(1, 13, 3)).astype(np.float32)
    tree, draws = Tree(logits[0]), 20_000
    many = jnp.broadcast_to(logits, (draws // 100, *logits.shape[1:]))
    limits = jnp.full((draws // 100,), 3)
    result = sample_tree(sampling(num_samples=100), keys(draws // 100), many, limits)
    found = [t for s in range(draws // 100) for t in tokens_of(hypotheses(result, s))]
    ended = [(*t, EOS) for n in range(3) for t in itertools.product((0, 2), repeat=n)]
    possible = [*ended, *itertools.product((0, 2), repeat=3)]
    expected = [draws * np.exp(tree.log_prob(tokens)) for tokens in possible]
    assert sum(expected) == pytest.approx(draws)
    counts = [found.count(tokens) for tokens in possible]
    assert scipy.stats.chisquare(counts, expected, sum_check=False).pvalue > 0.01


def test_samples_of_a_sentence_are_independent():
    """Pairs of samples have the product distribution."""
    p = np.array([0.5, 0.3, 0.2])
    logits = jnp.broadcast_to(jnp.log(jnp.array(p)), (4000, 2, 3))
    tokens = np.asarray(draw(sampling(), logits, keys(4000), jnp.array(0)))
    cells = np.bincount(3 * tokens[:, 0] + tokens[:, 1], minlength=9)
    assert scipy.stats.chisquare(cells, 4000 * np.outer(p, p).ravel()).pvalue > 0.01


def test_top_k_breaks_ties_by_id():
    logits = jnp.zeros((1, 1, 4))
    _, tokens = truncate(sampling(top_k=2), logits)
    assert tokens.tolist() == [[[0, 1]]]
    kept, tokens = truncate(sampling(top_p=0.5), logits)
    assert tokens[0, 0][kept[0, 0] > -INFINITY].tolist() == [0, 1]


def test_scores_are_the_models_whatever_is_forbidden():
    logits = tree_logits(5, 30, 4, 5)
    settings = sampling(
        num_samples=4, temperature=2.0, top_k=3, top_p=0.9, min_length=1, no_repeat_ngram=2,
        length_penalty=1.0, penalty="power",
    )  # fmt: skip
    random = np.random.default_rng(0)
    limits = random.integers(0, 6, 30).astype(np.int32)
    lengths = random.integers(0, 3, 30)
    prefix = random.integers(2, 4, (30, 2)).astype(np.int32)
    prefix[np.arange(2) >= lengths[:, None]] = PAD
    result = sample_tree(settings, keys(30), logits, limits, prefix)
    for sentence in range(30):
        tree, forced = Tree(logits[sentence]), tuple(prefix[sentence, : lengths[sentence]].tolist())
        for value, log_prob, tokens in hypotheses(result, sentence):
            assert permitted(settings, forced, tokens)
            assert tokens[-1:] == (EOS,) or len(tokens) == limits[sentence]
            assert EOS not in tokens[:-1]
            assert log_prob == pytest.approx(tree.log_prob(tokens), rel=1e-5, abs=1e-5)
            assert value == pytest.approx(log_prob / max(len(tokens), 1), rel=1e-5)


def test_sample_depends_only_on_its_key_and_number():
    logits = tree_logits(9, 5, 4, 5)
    limits = np.array([5, 3, 5, 0, 4], np.int32)
    together = sample_tree(sampling(num_samples=4), keys(5), logits, limits)
    order = np.array([3, 0, 4, 2, 1])
    shuffled = sample_tree(sampling(num_samples=4), keys(5)[order], logits[order], limits[order])
    fewer = sample_tree(sampling(num_samples=2), keys(5), logits, limits)
    for sentence in range(5):
        found = hypotheses(together, sentence)
        assert hypotheses(shuffled, order.tolist().index(sentence)) == found
        assert set(tokens_of(hypotheses(fewer, sentence))) <= set(tokens_of(found))
    other = sample_tree(
        sampling(num_samples=4), jax.random.split(jax.random.key(1), 5), logits, limits
    )
    assert (np.asarray(other.tokens) != np.asarray(together.tokens)).any()


def test_samples_at_a_dead_end_do_not_exist():
    logits = np.full((1, 4, 3), -INFINITY, np.float32)
    logits[0, 0] = [-INFINITY, np.log(0.5), np.log(0.5)]  # EOS, or token 2, a dead end.
    result = sample_tree(sampling(num_samples=50), keys(1), logits, jnp.array([3]))
    found = hypotheses(result, 0)
    assert 10 < len(found) < 40
    assert set(tokens_of(found)) == {(EOS,)}


def test_advance_in_several_calls_equals_one_call():
    logits = tree_logits(9, 5, 4, 5)
    limits = jnp.array([5, 1, 5, 2, 4])
    settings = sampling(num_samples=4)
    whole = sample_tree(settings, keys(5), logits, limits)
    state, _ = advance_tree(settings, start_tree(settings, keys(5), logits, limits), 2)
    rows = jnp.array([4, 0, 2, 0, 0])
    _, result = advance_tree(settings, take_sentences(state, rows), CAPACITY)
    for found, row in enumerate(rows.tolist()):
        assert hypotheses(result, found) == hypotheses(whole, row)


def test_sample_composes_its_methods():
    # No option has its default, so that a lost option changes the result.
    options = {
        "length_penalty": 0.6,
        "penalty": "power",
        "min_length": 1,
        "no_repeat_ngram": 2,
        "temperature": 1.5,
        "top_k": 3,
        "top_p": 0.9,
    }
    settings = sampling(num_samples=4, **options)
    logits = jnp.asarray(tree_logits(5, 3, 4, 5))
    limits, prefix = jnp.array([5, 4, 3]), jnp.array([[2, 0], [0, 0], [3, 2]])

    def composed(logits):
        state = settings.start(tree_cache(logits, 4), limits, CAPACITY, prefix, keys=keys(3))
        return settings.finalize(settings.advance(tree_step, state, CAPACITY))

    def together(logits):
        return sample(
            tree_step,
            tree_cache(logits, 4),
            keys=keys(3),
            max_lengths=limits,
            capacity=CAPACITY,
            num_samples=4,
            bos_id=BOS,
            eos_id=EOS,
            pad_id=PAD,
            prefix=prefix,
            **options,
        )

    assert str(jax.make_jaxpr(together)(logits)) == str(jax.make_jaxpr(composed)(logits))


@pytest.mark.parametrize("rows", [None, [7, 3, 5]])
def test_keys_derive_from_the_seed_and_the_row_ids(rows: list[int] | None):
    logits, limits = jnp.asarray(tree_logits(9, 3, 4, 5)), jnp.array([5, 5, 5])
    settings = sampling(num_samples=4, seed=3)
    found = settings(
        tree_step,
        tree_cache(logits, 4),
        max_lengths=limits,
        capacity=CAPACITY,
        sentence_ids=None if rows is None else jnp.array(rows),
    )
    made = [jax.random.fold_in(jax.random.key(3), n) for n in rows or range(3)]
    given = sample_tree(sampling(num_samples=4), jnp.stack(made), logits, limits)
    jax.tree.map(np.testing.assert_array_equal, found, given)


@pytest.mark.parametrize("kind", ["rbg", "unsafe_rbg"])
def test_samples_depend_on_no_other_sentence_whatever_the_default_generator(kind: str):
    """With RBG keys, which are common on TPUs, numbers drawn under vmap depend on the batch."""
    logits, limits = jnp.asarray(tree_logits(9, 3, 4, 5)), jnp.array([5, 5, 5])
    settings = sampling(num_samples=4, seed=3)
    with jax.default_prng_impl(kind):
        found = [
            settings(
                tree_step,
                tree_cache(logits[rows], 4),
                max_lengths=limits[rows],
                capacity=CAPACITY,
                sentence_ids=jnp.arange(3)[rows],
            ).tokens
            for rows in (slice(0, 3), slice(2, 3))
        ]
    np.testing.assert_array_equal(found[0][2], found[1][0])


def test_wrong_number_of_keys_is_refused():
    with pytest.raises(UserError, match=r"keys must hold one .* shape \(2,\): got \(3,\)"):
        sampling().start((), jnp.array([1, 1]), CAPACITY, keys=keys(3))
