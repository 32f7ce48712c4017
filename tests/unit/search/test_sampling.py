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
    key = jax.random.key(seed)
    return jax.random.split(key, sentences)


def keep(p, tokens):
    """Returns the distribution of some tokens only."""
    is_kept = np.isin(np.arange(len(p)), tokens)
    kept = np.where(is_kept, p, 0.0)
    return kept / kept.sum()


def keep_mass(p, order, mass):
    """Returns the distribution of the fewest tokens, in an order, that have a probability mass."""
    masses = np.cumsum(p[order])
    count = 1 + np.flatnonzero(masses >= mass - 1e-9)[0]
    return keep(p, order[:count])


# The filters one by one, each with its definition, in NumPy, float64.
def expected_distribution(
    p,
    temperature=1.0,
    top_k=0,
    top_p=1.0,
    min_p=0.0,
    typical_p=1.0,
) -> np.ndarray:
    p = np.asarray(p, np.float64) ** (1 / temperature)

    # The most probable tokens, by number, by mass, and by a part of the greatest probability.
    most_probable = np.argsort(-p, kind="stable")
    p = keep(p, most_probable[: top_k or len(p)])
    most_probable = np.argsort(-p, kind="stable")
    p = keep_mass(p, most_probable, top_p)
    probable_enough = np.flatnonzero(p >= min_p * max(p))
    p = keep(p, probable_enough)

    # The tokens whose information is closest to the entropy.
    with np.errstate(divide="ignore"):
        information = -np.log(p)
    possible = p > 0
    entropy = (p[possible] * information[possible]).sum()
    distances = abs(information - entropy)
    most_typical = np.argsort(distances, kind="stable")
    return keep_mass(p, most_typical, typical_p)


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
    {
        "temperature": 2.0,
        "top_k": 6,
        "top_p": 0.95,
        "min_p": 0.6,
        "typical_p": 0.5,
    },
]


def test_truncation_keeps_the_right_tokens():
    equal_rows = np.tile(PROBABILITIES, (2, 3, 1))
    rng = np.random.default_rng(0)
    shuffled = rng.permuted(equal_rows, axis=2)  # [2, 3, 8]

    @jax.jit
    def truncated(logits):
        results = []
        for cut in FILTERS:
            temperature = cut.get("temperature", 1.0)
            scaled = logits / temperature + 3.0
            results.append(sampling(**cut).truncate(scaled))
        return results

    found_by_filter = jax.device_get(truncated(log(shuffled)))
    for cut, (kept, tokens) in zip(FILTERS, found_by_filter, strict=True):
        # Tokens are None where all are there, in order.
        if tokens is None:
            tokens = np.broadcast_to(np.arange(8), shuffled.shape)
        probabilities = scipy.special.softmax(kept, axis=2)
        found = np.zeros(shuffled.shape)
        np.put_along_axis(found, tokens, probabilities, axis=2)

        expected = np.apply_along_axis(expected_distribution, 2, shuffled, **cut)
        np.testing.assert_allclose(
            found,
            expected,
            rtol=1e-5,
            err_msg=str(cut),
        )


def test_ties_and_impossible_tokens():
    ties = [
        {"top_k": 2},
        {"top_p": 0.5},
        {"min_p": 1.0},
        {"typical_p": 0.5},
    ]

    @jax.jit
    def truncated(equal, impossible):
        of_equal = [sampling(**cut).truncate(equal) for cut in ties]
        of_impossible = [sampling(**cut).truncate(impossible) for cut in FILTERS]
        return of_equal, of_impossible

    equal = np.zeros((1, 1, 4), np.float32)
    impossible = np.full((1, 1, 4), -INFINITY, np.float32)
    of_equal, of_impossible = jax.device_get(truncated(equal, impossible))

    # Ties are broken by id, or they are kept together.
    _, tokens = of_equal[0]
    assert tokens.tolist() == [[[0, 1]]]
    for kept, _ in of_equal[1:]:
        assert (kept == 0).all()
    for kept, _ in of_impossible:
        assert (kept == -INFINITY).all()


def p_value(counts, expected):
    return scipy.stats.chisquare(counts, expected).pvalue


def test_draws_have_the_exact_distribution_and_are_independent():
    draws = 20_000
    sentences = draws // 10
    cuts = [FILTERS[0], FILTERS[4]]
    samplers = [sampling(num_samples=10, **cut) for cut in cuts]
    # Every 20th token of 160 is possible.
    sparse = np.zeros(8 * 20)
    sparse[::20] = PROBABILITIES
    logits = np.broadcast_to(log(sparse) + 3.0, (sentences, 10, 160))

    @jax.jit
    def drawn(logits, keys):
        step = jnp.array(4)
        return [sampler.draw(logits, keys, step) for sampler in samplers]

    # The seeds are fixed, so the test is deterministic.
    found = jax.device_get(drawn(logits, keys(sentences)))
    for cut, ids in zip(cuts, found, strict=True):
        assert (ids % 20 == 0).all()
        tokens = ids // 20
        p = expected_distribution(PROBABILITIES, **cut)
        possible = p > 0
        counts = np.bincount(tokens.ravel(), minlength=8)
        assert counts[~possible].sum() == 0
        assert p_value(counts[possible], draws * p[possible]) > 0.01

        # Pairs of samples of a sentence have the product distribution.
        pairs = 8 * tokens[:, ::2] + tokens[:, 1::2]
        cells = np.bincount(pairs.ravel(), minlength=64)
        expected = draws / 2 * np.outer(p, p).ravel()
        possible = expected > 0
        assert p_value(cells[possible], expected[possible]) > 0.01


HUNDRED = sampling(num_samples=100)
SENTENCES = 200


def test_whole_hypotheses_have_the_exact_distribution():
    """Covers all sequences of a small tree, so draws of different steps are independent."""
    rng = np.random.default_rng(3)
    logits = 1.5 * rng.normal(size=(1, 13, 3)).astype(np.float32)
    tree = Tree(logits[0])
    many = logits.repeat(SENTENCES, axis=0)
    limits = np.full(SENTENCES, 3)

    result = search_tree(HUNDRED, many, limits, keys=keys(SENTENCES))

    found = collections.Counter()
    for sentence in range(SENTENCES):
        found.update(tokens_of(hypotheses(result, sentence)))

    # Tokens other than EOS are 0 and 2.
    possible = list(itertools.product((0, 2), repeat=3))
    for length in range(3):
        for before in itertools.product((0, 2), repeat=length):
            possible.append((*before, EOS))

    log_probs = [tree.log_prob(tokens) for tokens in possible]
    expected = 20_000 * np.exp(log_probs)
    assert sum(expected) == pytest.approx(20_000)
    counts = [found[tokens] for tokens in possible]
    result = scipy.stats.chisquare(counts, expected, sum_check=False)
    assert result.pvalue > 0.01


def test_samples_at_a_dead_end_do_not_exist():
    """The first token is EOS, or token 2, a dead end, with equal probabilities."""
    logits = np.full((SENTENCES, 13, 3), -INFINITY, np.float32)
    logits[:, 0, 1:] = np.log(0.5)
    limits = np.full(SENTENCES, 3)

    result = search_tree(HUNDRED, logits, limits, keys=keys(SENTENCES))

    found = [hypotheses(result, sentence) for sentence in range(SENTENCES)]
    different = set().union(*map(tokens_of, found))
    assert different == {(EOS,)}
    # Binomial: 20,000 samples, each with probability 1/2, within four standard deviations.
    deviation = (20_000 / 4) ** 0.5
    assert sum(map(len, found)) == pytest.approx(10_000, abs=4 * deviation)


def test_scores_are_the_models_whatever_is_forbidden():
    logits = tree_logits(seed=5, sentences=30, vocabulary=4, depth=5)
    settings = sampling(
        num_samples=4,
        temperature=2.0,
        top_k=3,
        top_p=0.9,
        min_length=1,
        no_repeat_ngram=2,
        length_penalty=1.0,
        penalty="power",
    )
    random = np.random.default_rng(0)
    limits = random.integers(0, 6, 30).astype(np.int32)
    lengths = random.integers(0, 3, 30)
    prefix = random.integers(2, 4, (30, 2)).astype(np.int32)
    is_padding = np.arange(2) >= lengths[:, None]
    prefix[is_padding] = PAD

    result = search_tree(settings, logits, limits, prefix=prefix, keys=keys(30))

    for sentence in range(30):
        tree = Tree(logits[sentence])
        length = lengths[sentence]
        forced = tuple(prefix[sentence, :length].tolist())
        for value, log_prob, tokens in hypotheses(result, sentence):
            assert permitted(settings, forced, tokens)
            assert tokens[-1:] == (EOS,) or len(tokens) == limits[sentence]
            assert EOS not in tokens[:-1]
            expected = tree.log_prob(tokens)
            assert log_prob == pytest.approx(expected, rel=1e-5, abs=1e-5)
            penalty = max(len(tokens), 1)
            assert value == pytest.approx(log_prob / penalty, rel=1e-5)


@pytest.mark.parametrize("kind", ["rbg", "unsafe_rbg"])
def test_keys_are_threefry_whatever_the_default_generator(kind):
    """With RBG keys, which are common on TPUs, numbers drawn under vmap depend on the batch."""
    with jax.default_prng_impl(kind):
        start = jax.eval_shape(lambda: sampling().start((), [5, 5], CAPACITY))
        default = jax.eval_shape(lambda: jax.random.key(0))

    threefry = jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32"))
    assert start.keys.dtype == threefry.dtype
    assert threefry.dtype != default.dtype
