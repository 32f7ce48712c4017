"""Sampling: exact distributions by chi-square, independence of the batch, the model's scores."""

import collections
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from .oracles import (
    CAPACITY,
    EOS,
    INFINITY,
    PAD,
    Tree,
    hypotheses,
    log,
    permitted,
    sampling,
    search_tree,
    tokens_of,
    tree_logits,
)


def keys(sentences: int, seed: int = 0) -> jax.Array:
    return jax.random.split(jax.random.key(seed), sentences)


# The filters one by one, each with its definition, in NumPy, float64.
def expected_distribution(
    p, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, typical_p=1.0
) -> np.ndarray:
    p = np.asarray(p, np.float64) ** (1 / temperature)

    def keep(p, tokens):
        kept = np.where(np.isin(np.arange(len(p)), tokens), p, 0.0)
        return kept / kept.sum()

    def fewest(p, order, mass):
        count = next(n for n in range(1, len(p) + 1) if p[order[:n]].sum() >= mass - 1e-9)
        return keep(p, order[:count])

    p = keep(p, np.argsort(-p, kind="stable")[: top_k or len(p)])
    p = fewest(p, np.argsort(-p, kind="stable"), top_p)
    p = keep(p, np.flatnonzero(p >= min_p * max(p)))
    with np.errstate(divide="ignore"):
        information = -np.log(p)
    entropy = sum(q * i for q, i in zip(p, information, strict=True) if q > 0)
    return fewest(p, np.argsort(abs(information - entropy), kind="stable"), typical_p)


PROBABILITIES = [0.05, 0.3, 0.2, 0.02, 0.25, 0.0, 0.08, 0.1]
FILTERS = [
    {},
    {"temperature": 0.5},
    {"temperature": 2.0, "top_k": 3},
    {"top_p": 0.7},  # 0.3 + 0.25 < 0.7 <= 0.3 + 0.25 + 0.2
    {"temperature": 1.5, "top_k": 5, "top_p": 0.6},
    {"top_p": 0.01},  # At least one token is kept.
    {"top_k": 99},  # More than the vocabulary.
    {"min_p": 0.5},  # At least 0.15: 0.3, 0.25 and 0.2.
    {"min_p": 1.0},
    # The entropy is 1.69; -log 0.2 = 1.61, -log 0.25 = 1.39, -log 0.3 = 1.20.
    {"typical_p": 0.4},  # 0.2 and 0.25, not the most probable token.
    {"typical_p": 0.01},
    {"temperature": 2.0, "top_k": 6, "top_p": 0.95, "min_p": 0.6, "typical_p": 0.5},
]


def test_truncation_keeps_the_right_tokens():
    shuffled = np.random.default_rng(0).permuted([[PROBABILITIES] * 3] * 2, axis=2)

    @jax.jit
    def truncated(logits):
        scaled = [logits / cut.get("temperature", 1.0) + 3.0 for cut in FILTERS]
        found = [sampling(**cut).truncate(z) for cut, z in zip(FILTERS, scaled, strict=True)]
        ties = [{"top_k": 2}, {"top_p": 0.5}, {"min_p": 1.0}, {"typical_p": 0.5}]
        equal = [sampling(**cut).truncate(jnp.zeros((1, 1, 4))) for cut in ties]
        impossible = [sampling(**c).truncate(jnp.full((1, 1, 4), -jnp.inf))[0] for c in FILTERS]
        return found, equal, impossible

    found, equal, impossible = jax.device_get(truncated(log(shuffled)))
    assert equal[0][1].tolist() == [[[0, 1]]]  # Ties are broken by id.
    assert all((kept == 0).all() for kept, _ in equal[1:])  # Or they are kept together.
    assert all((kept == -INFINITY).all() for kept in impossible)
    for cut, (kept, tokens) in zip(FILTERS, found, strict=True):
        probabilities = np.zeros(shuffled.shape)
        tokens = np.broadcast_to(np.arange(8), shuffled.shape) if tokens is None else tokens
        np.put_along_axis(probabilities, tokens, scipy.special.softmax(kept, axis=2), axis=2)
        expected = np.apply_along_axis(expected_distribution, 2, shuffled, **cut)
        np.testing.assert_allclose(probabilities, expected, rtol=1e-5, err_msg=str(cut))


def test_draws_have_the_exact_distribution_and_are_independent():
    draws, cuts = 20_000, [FILTERS[0], FILTERS[4]]
    sparse = np.zeros(8 * 20)
    sparse[::20] = PROBABILITIES
    logits = np.broadcast_to(log(sparse) + 3.0, (draws // 10, 10, 160))

    @jax.jit
    def drawn(logits, keys):
        return [sampling(num_samples=10, **cut).draw(logits, keys, jnp.array(4)) for cut in cuts]

    # The seeds are fixed, so the test is deterministic.
    for cut, tokens in zip(cuts, jax.device_get(drawn(logits, keys(draws // 10))), strict=True):
        p = expected_distribution(PROBABILITIES, **cut)
        assert (tokens % 20 == 0).all()
        tokens = tokens // 20
        counts, possible = np.bincount(tokens.ravel(), minlength=8), p > 0
        assert counts[~possible].sum() == 0
        assert scipy.stats.chisquare(counts[possible], draws * p[possible]).pvalue > 0.01
        # Pairs of samples of a sentence have the product distribution.
        cells = np.bincount(8 * tokens[:, ::2].ravel() + tokens[:, 1::2].ravel(), minlength=64)
        expected = draws / 2 * np.outer(p, p).ravel()
        assert scipy.stats.chisquare(cells[expected > 0], expected[expected > 0]).pvalue > 0.01


HUNDRED = sampling(num_samples=100)


def test_whole_hypotheses_have_the_exact_distribution():
    """Covers all sequences of a small tree, so draws of different steps are independent."""
    logits = 1.5 * np.random.default_rng(3).normal(size=(1, 13, 3)).astype(np.float32)
    tree, sentences = Tree(logits[0]), 200
    many = logits.repeat(sentences, axis=0)
    limits = np.full(sentences, 3)
    result = search_tree(HUNDRED, many, limits, keys=keys(sentences))
    found = collections.Counter(t for s in range(200) for t in tokens_of(hypotheses(result, s)))
    ended = [(*t, EOS) for n in range(3) for t in itertools.product((0, 2), repeat=n)]
    possible = [*ended, *itertools.product((0, 2), repeat=3)]
    expected = [20_000 * np.exp(tree.log_prob(tokens)) for tokens in possible]
    assert sum(expected) == pytest.approx(20_000)
    counts = [found[tokens] for tokens in possible]
    assert scipy.stats.chisquare(counts, expected, sum_check=False).pvalue > 0.01

    # Samples at a dead end do not exist: EOS, or token 2, a dead end.
    many[:] = -INFINITY
    many[:, 0, 1:] = np.log(0.5)
    result = search_tree(HUNDRED, many, limits, keys=keys(sentences))
    found = [hypotheses(result, s) for s in range(sentences)]
    assert {tokens for one in found for tokens in tokens_of(one)} == {(EOS,)}
    assert sum(map(len, found)) == pytest.approx(10_000, abs=4 * (20_000 / 4) ** 0.5)


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
    result = search_tree(settings, logits, limits, prefix, keys(30))
    for sentence in range(30):
        tree, forced = Tree(logits[sentence]), tuple(prefix[sentence, : lengths[sentence]].tolist())
        for value, log_prob, tokens in hypotheses(result, sentence):
            assert permitted(settings, forced, tokens)
            assert tokens[-1:] == (EOS,) or len(tokens) == limits[sentence]
            assert EOS not in tokens[:-1]
            assert log_prob == pytest.approx(tree.log_prob(tokens), rel=1e-5, abs=1e-5)
            assert value == pytest.approx(log_prob / max(len(tokens), 1), rel=1e-5)


@pytest.mark.parametrize("kind", ["rbg", "unsafe_rbg"])
def test_keys_are_threefry_whatever_the_default_generator(kind):
    """With RBG keys, which are common on TPUs, numbers drawn under vmap depend on the batch."""
    with jax.default_prng_impl(kind):
        keys = jax.eval_shape(lambda: sampling().start((), [5, 5], CAPACITY).keys)
        default = jax.eval_shape(lambda: jax.random.key(0))
    threefry = jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32"))
    assert keys.dtype == threefry.dtype != default.dtype
