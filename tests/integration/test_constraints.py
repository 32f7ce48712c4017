"""A user's own constraints, in beam search, in sampling and in a Translator.

One forbids the tokens in an array, which is traced. One makes even and odd tokens alternate. One
depends on the sentence.
"""

import collections
import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxformer import BeamSearch, Translator, UserError, beam_search, sample
from jaxformer.inference.pair_scores import score_pairs

from ..unit.search import oracles
from ..unit.search.oracles import EOS, IDS, Tree, exhaustive, hypotheses, tokens_of


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Forbid:
    tokens: jax.Array

    def __call__(self, logits, context):
        return logits.at[:, :, self.tokens].set(-jnp.inf)


def alternate(logits, context):
    """Forbids an even token after an even one, and an odd one after an odd one; allows EOS."""
    newest = context.tokens[:, :, context.step - 1, None]  # [B, N, 1]
    token = jnp.arange(logits.shape[2])  # [V]
    same_parity = token % 2 == newest % 2
    is_word = token != context.eos_id
    wrong = same_parity & is_word & (context.step > 0)
    return jnp.where(wrong, -jnp.inf, logits)


def forbid_by_row(forbidden, logits, context):
    """Forbids the tokens of row n in sentence n."""
    of_sentence = forbidden[context.sentence_ids][:, None]  # [B, 1, V]
    return jnp.where(of_sentence, -jnp.inf, logits)


def obeys(forbidden, tokens):
    parities = [token % 2 for token in tokens if token != EOS]
    alternating = all(a != b for a, b in itertools.pairwise(parities))
    return alternating and not forbidden & set(tokens)


VOCABULARY = 5
DEPTH = 3
SENTENCES = 40
WIDE = BeamSearch(beam_size=50, length_penalty=0.6, **IDS)  # 2 * 50 >= 5 * 4^2
TRACES = []


@jax.jit
def search(logits, limits, forbidden):
    TRACES.append(WIDE)
    return beam_search(
        oracles.tree_step,
        oracles.tree_cache(logits, 50),
        max_lengths=limits,
        capacity=DEPTH,
        beam_size=50,
        length_penalty=0.6,
        constraints=(Forbid(forbidden), alternate),
        **IDS,
    )


def test_beam_search_finds_exactly_the_allowed_hypotheses():
    logits = oracles.tree_logits(3, SENTENCES, VOCABULARY, depth=DEPTH)
    rng = np.random.default_rng(0)
    limits = rng.integers(1, DEPTH + 1, SENTENCES).astype(np.int32)

    different = 0
    for forbidden in ([2, 4], [0, 3]):
        result = search(logits, limits, np.array(forbidden))
        result = jax.device_get(result)
        allowed = functools.partial(obeys, set(forbidden))
        for sentence, limit in enumerate(limits.tolist()):
            tree = Tree(logits[sentence])
            expected = exhaustive(tree, WIDE, limit, forced=(), also=allowed)
            found = hypotheses(result, sentence)

            assert set(tokens_of(found)) == set(tokens_of(expected))
            found_scores = [score for score, _, _ in found]
            expected_scores = [score for score, _, _ in expected]
            np.testing.assert_allclose(found_scores, expected_scores, rtol=1e-5, atol=1e-5)

            for _, log_prob, tokens in found:
                # Log probabilities are the model's, not renormalized.
                of_model = tree.log_prob(tokens)
                assert log_prob == pytest.approx(of_model, rel=1e-5, abs=1e-5)

            without = exhaustive(tree, WIDE, limit, forced=())
            different += expected != without

    assert different > SENTENCES
    assert len(TRACES) == 1  # Other arrays of the same shape do not recompile.


def allowed_probability(tree, tokens):
    """Multiplies the probabilities of the tokens, each renormalized over the allowed ones."""
    product = 1.0
    for n, token in enumerate(tokens):
        prefix = tokens[:n]
        odds = np.exp(tree.next_log_probs(prefix))
        allowed = [t for t in range(VOCABULARY) if obeys({4}, (*prefix, t))]
        product *= odds[token] / odds[allowed].sum()
    return product


def test_allowed_samples_have_the_renormalized_distribution():
    random = np.random.default_rng(1)
    logits = 1.5 * random.normal(size=(1, 31, VOCABULARY)).astype(np.float32)
    tree = Tree(logits[0])
    rows = 200
    per_row = 100
    draws = rows * per_row

    @jax.jit
    def samples(forbidden):
        same_logits = jnp.broadcast_to(logits, (rows, *logits.shape[1:]))
        return sample(
            oracles.tree_step,
            oracles.tree_cache(same_logits, per_row),
            keys=jax.random.split(jax.random.key(0), rows),
            max_lengths=jnp.full(rows, DEPTH),
            capacity=DEPTH,
            num_samples=per_row,
            constraints=(Forbid(forbidden), alternate),
            **IDS,
        )

    result = jax.device_get(samples(np.array([4])))
    found = []
    for row in range(rows):
        found += hypotheses(result, row)
    assert len(found) == draws
    _, log_prob, tokens = found[0]
    assert log_prob == pytest.approx(tree.log_prob(tokens), rel=1e-5)

    words = (0, 2, 3)
    every = list(itertools.product(words, repeat=DEPTH))
    for length in range(DEPTH):
        for tokens in itertools.product(words, repeat=length):
            every.append((*tokens, EOS))
    possible = [tokens for tokens in every if obeys({4}, tokens)]
    expected = [draws * allowed_probability(tree, tokens) for tokens in possible]
    assert sum(expected) == pytest.approx(draws)

    numbers = collections.Counter(tokens_of(found))
    counts = [numbers[tokens] for tokens in possible]
    # The seed is fixed, so the test is deterministic.
    test = scipy.stats.chisquare(counts, expected, sum_check=False)
    assert test.pvalue > 0.01


SOURCES = ["one", "one hundred and two thousand", "twenty two", "seven"]


@pytest.fixture(scope="module")
def translator(learned_workdir):
    search = BeamSearch(beam_size=36, length_penalty=0.6, max_length=3)
    return Translator.load(learned_workdir, search=search)


def alternating(words):
    """Returns the translations of at most two words in which even and odd tokens alternate."""
    found = []
    for length in range(3):
        for tokens in itertools.product(words, repeat=length):
            if obeys(set(), tokens):
                found.append([*tokens, EOS])
    return found


def test_translator_finds_exactly_the_allowed_translations(translator):
    """At most two of six words, alternating: 25 translations, scored like forced decoding."""
    vocabulary = translator.tokenizer.vocab_size
    traces = []

    def noted(logits, context):
        traces.append(context)
        return alternate(logits, context)

    def translate(words, forbidden):
        others = np.setdiff1d(np.arange(vocabulary), [*words, EOS])
        only_words = Forbid(others.astype(np.int32))
        by_row = jax.tree_util.Partial(forbid_by_row, forbidden)
        constraints = (only_words, noted, by_row)
        return translator.hypotheses(SOURCES, constraints=constraints)

    words = [10, 11, 20, 21, 30, 41]
    possible = alternating(words)
    assert len(possible) == 25

    nothing = np.zeros((len(SOURCES) + 1, vocabulary), bool)
    for sentence, found in zip(SOURCES, translate(words, nothing), strict=True):
        source = translator.source_ids(sentence)
        pairs = [(source, tokens) for tokens in possible]
        scores = score_pairs(translator, pairs)
        best = sorted(zip(scores, possible, strict=True), reverse=True)
        assert [h.tokens for h in found] == [tokens for _, tokens in best]

        found_scores = [h.score for h in found]
        expected_scores = [score.score for score, _ in best]
        np.testing.assert_allclose(found_scores, expected_scores, atol=1e-4)

    # Each sentence has its own pair of words; the translator sorts sentences by length.
    pairs = [(10, 11), (20, 21), (30, 31), (40, 41)]
    forbidden = np.ones((len(SOURCES) + 1, vocabulary), bool)
    forbidden[:, EOS] = False
    for row, pair in enumerate(pairs, start=1):  # The first sentence has number 1.
        forbidden[row, pair] = False

    assert traces
    traces.clear()
    results = translate([10, 20, 21, 30, 31, 40], forbidden)
    assert not traces  # Other arrays of the same shape do not recompile.
    expected = [
        [[], [10]],
        [[], [20], [20, 21], [21], [21, 20]],
        [[], [30], [30, 31], [31], [31, 30]],
        [[], [40]],
    ]
    for found, translations in zip(results, expected, strict=True):
        assert sorted(h.tokens[:-1] for h in found) == translations


@dataclasses.dataclass(frozen=True)
class Unregistered:
    tokens: jax.Array

    def __call__(self, logits, context):
        return logits


def test_wrong_constraints_are_refused(translator):
    unregistered = Unregistered(np.array([3]))
    with pytest.raises(UserError, match=r"hashable, or a pytree .*: got Unregistered; register it"):
        translator.translate(["one"], constraints=(unregistered,))

    def step(tokens, cache):
        return jnp.zeros((*tokens.shape, 4)), cache

    def of_another_shape(logits, context):
        return logits[:, :, 0]

    wrong = BeamSearch(constraints=(of_another_shape,), **IDS)
    with pytest.raises(UserError, match=r"must return logits .* = \(1, 4, 4\): got \(1, 4\)"):
        jax.eval_shape(lambda: wrong(step, (), max_lengths=[2], capacity=2))
