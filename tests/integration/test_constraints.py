"""A user's own constraints, in beam search, in sampling and in a Translator.

One forbids the tokens in an array, which is traced. One makes even and odd tokens alternate. One
depends on the sentence.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxformer import BeamSearch, Sampling, Translator, UserError, beam_search, sample
from jaxformer.inference.pair_scores import score_pairs
from jaxformer.search import MinLength, SearchContext

from ..unit.search.oracles import (
    EOS,
    PAD,
    Tree,
    exhaustive,
    hypotheses,
    tokens_of,
    tree_cache,
    tree_logits,
    tree_step,
)
from .compilations import Compilations

IDS = {"bos_id": 0, "eos_id": EOS, "pad_id": PAD}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Forbid:
    """Forbids some tokens everywhere."""

    tokens: jax.Array

    def __call__(self, logits: jax.Array, context: SearchContext) -> jax.Array:
        return logits.at[:, :, self.tokens].set(-jnp.inf)


def alternate(logits: jax.Array, context: SearchContext) -> jax.Array:
    """Forbids an even token after an even one, and an odd one after an odd one; allows EOS."""
    newest = context.tokens[:, :, context.step - 1, None]
    token = jnp.arange(logits.shape[2])
    wrong = (token % 2 == newest % 2) & (token != context.eos_id) & (context.step > 0)
    return jnp.where(wrong, -jnp.inf, logits)


def forbid_by_row(forbidden: jax.Array, logits: jax.Array, context: SearchContext) -> jax.Array:
    """Forbids the tokens of row n in sentence n."""
    return jnp.where(forbidden[context.sentence_ids][:, None], -jnp.inf, logits)


def obeys(forbidden: set[int], tokens: tuple[int, ...]) -> bool:
    words = [token for token in tokens if token != EOS]
    alternating = all(a % 2 != b % 2 for a, b in itertools.pairwise(words))
    return alternating and not forbidden & set(tokens)


VOCABULARY, DEPTH, SENTENCES = 5, 3, 40
WIDE = BeamSearch(beam_size=50, length_penalty=0.6, **IDS)  # 2 * 50 >= 5 * 4^2


@jax.jit
def search(logits: jax.Array, limits: jax.Array, forbidden: jax.Array):
    return beam_search(
        tree_step,
        tree_cache(logits, 50),
        max_lengths=limits,
        capacity=DEPTH,
        beam_size=50,
        length_penalty=0.6,
        constraints=(Forbid(forbidden), alternate),
        **IDS,
    )


def test_beam_search_finds_exactly_the_allowed_hypotheses():
    logits = tree_logits(3, SENTENCES, VOCABULARY, DEPTH)
    limits = np.random.default_rng(0).integers(1, DEPTH + 1, SENTENCES).astype(np.int32)
    different = 0
    for forbidden in ([2, 4], [0, 3]):
        result = search(logits, limits, jnp.array(forbidden))
        also = functools.partial(obeys, set(forbidden))
        for sentence, limit in enumerate(limits.tolist()):
            tree = Tree(logits[sentence])
            expected = exhaustive(tree, WIDE, limit, (), also)
            found = hypotheses(result, sentence)
            assert set(tokens_of(found)) == set(tokens_of(expected))
            np.testing.assert_allclose(
                [h[0] for h in found], [h[0] for h in expected], rtol=1e-5, atol=1e-5
            )
            for _, log_prob, tokens in found:  # The model's log probability.
                assert log_prob == pytest.approx(tree.log_prob(tokens), rel=1e-5, abs=1e-5)
            different += expected != exhaustive(tree, WIDE, limit, ())
    assert different > SENTENCES


def test_other_arrays_of_the_same_shape_do_not_recompile():
    logits, limits = tree_logits(3, SENTENCES, VOCABULARY, DEPTH), np.full(SENTENCES, DEPTH)
    arguments = [(logits, limits.astype(np.int32), jnp.array(ids)) for ids in ([2, 4], [0, 3])]
    search(*arguments[0])
    with Compilations() as compilations:
        first, second = search(*arguments[0]), search(*arguments[1])
    assert compilations.count == 0
    assert (np.asarray(first.tokens) != np.asarray(second.tokens)).any()


def test_allowed_samples_have_the_renormalized_distribution():
    logits = 1.5 * np.random.default_rng(1).normal(size=(1, 31, VOCABULARY)).astype(np.float32)
    tree, rows, draws = Tree(logits[0]), 200, 20_000
    result = jax.jit(
        lambda forbidden: sample(
            tree_step,
            tree_cache(jnp.broadcast_to(logits, (rows, *logits.shape[1:])), draws // rows),
            keys=jax.random.split(jax.random.key(0), rows),
            max_lengths=jnp.full(rows, DEPTH),
            capacity=DEPTH,
            num_samples=draws // rows,
            constraints=(Forbid(forbidden), alternate),
            **IDS,
        )
    )(jnp.array([4]))
    found = [h for row in range(rows) for h in hypotheses(result, row)]
    assert len(found) == draws
    assert found[0][1] == pytest.approx(tree.log_prob(found[0][2]), rel=1e-5)

    def probability(tokens: tuple[int, ...]) -> float:
        """Returns the product of the tokens' probabilities, renormalized over allowed tokens."""
        product = 1.0
        for n in range(len(tokens)):
            odds = np.exp(tree.next_log_probs(tokens[:n]))
            allowed = [t for t in range(VOCABULARY) if obeys({4}, (*tokens[:n], t))]
            product *= odds[tokens[n]] / odds[allowed].sum()
        return product

    words = (0, 2, 3)
    ended = [(*t, EOS) for n in range(DEPTH) for t in itertools.product(words, repeat=n)]
    possible = [*ended, *itertools.product(words, repeat=DEPTH)]
    possible = [tokens for tokens in possible if obeys({4}, tokens)]
    expected = [draws * probability(tokens) for tokens in possible]
    assert sum(expected) == pytest.approx(draws)
    counts = [tokens_of(found).count(tokens) for tokens in possible]
    # The seed is fixed, so the test is deterministic.
    assert scipy.stats.chisquare(counts, expected, sum_check=False).pvalue > 0.01


# Tokens 2 and 3 have probabilities 0.8 and 0.2; EOS follows with probability 1.
CHAIN = jnp.log(jnp.array([[0.0, 0.0, 0.8, 0.2], [0.0, 1, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0]]))


def chain_step(tokens: jax.Array, cache: tuple) -> tuple[jax.Array, tuple]:
    return CHAIN[tokens], cache


@pytest.mark.parametrize("algorithm", [BeamSearch(beam_size=1, **IDS), Sampling(**IDS)])
def test_other_logits_affect_the_choice_and_not_the_score(algorithm: BeamSearch | Sampling):
    """The less probable token is preferred so much that it is always chosen."""

    def prefer(logits: jax.Array, context: SearchContext) -> jax.Array:
        return logits + jnp.array([0.0, 0.0, 5.0, 50.0])

    algorithm = dataclasses.replace(algorithm, constraints=(prefer,), length_penalty=0.0)
    result = algorithm(chain_step, (), max_lengths=[2], capacity=2)
    for score, log_prob, tokens in hypotheses(result, 0):
        assert tokens == (3, EOS)
        assert score == log_prob == pytest.approx(np.log(0.2))


def test_combined_with_prefixes_and_built_in_constraints():
    settings = dataclasses.replace(WIDE, constraints=(Forbid(jnp.array([2])), MinLength(2)))
    cache = tree_cache(jnp.zeros((1, 156, VOCABULARY)), 50)  # All tokens are equally probable.
    found = hypotheses(settings(tree_step, cache, max_lengths=[4], capacity=4, prefix=[[2]]), 0)
    assert found
    assert all(tokens[0] == 2 and EOS not in tokens[:2] for tokens in tokens_of(found))
    assert not any(2 in tokens[1:] for tokens in tokens_of(found))


def test_logits_of_another_shape_are_refused():
    wrong = BeamSearch(constraints=(lambda logits, context: logits[:, :, 0],), **IDS)
    with pytest.raises(UserError, match=r"must return logits .* = \(1, 4, 4\): got \(1, 4\)"):
        wrong(chain_step, (), max_lengths=[2], capacity=2)


SOURCES = ["one", "one hundred and two thousand", "twenty two", "seven"]


@pytest.fixture(scope="module")
def translator(learned_workdir):
    search = BeamSearch(beam_size=36, length_penalty=0.6, max_length=3)
    return Translator.load(learned_workdir, search=search)


def everything_but(translator: Translator, words: list[int]) -> np.ndarray:
    vocabulary = translator.tokenizer.vocab_size
    return np.setdiff1d(np.arange(vocabulary), [*words, EOS]).astype(np.int32)


def test_translator_finds_exactly_the_allowed_translations(translator):
    """At most two of six words, alternating: 25 translations, scored like forced decoding."""
    words = [10, 11, 20, 21, 30, 41]
    possible = [(*t, EOS) for n in range(3) for t in itertools.product(words, repeat=n)]
    possible = [list(tokens) for tokens in possible if obeys(set(), tokens)]
    assert len(possible) == 25
    constraints = (Forbid(jnp.asarray(everything_but(translator, words))), alternate)
    for sentence, found in zip(
        SOURCES, translator.hypotheses(SOURCES, constraints=constraints), strict=True
    ):
        source = translator.source_ids(sentence)
        scores = score_pairs(translator, [(source, tokens) for tokens in possible])
        best = sorted(zip(scores, possible, strict=True), reverse=True)
        assert [h.tokens for h in found] == [tokens for _, tokens in best]
        np.testing.assert_allclose([h.score for h in found], [s.score for s, _ in best], atol=1e-4)


def test_translator_does_not_recompile_for_other_arrays(translator):
    first = Forbid(everything_but(translator, [10, 11, 20]))
    second = Forbid(everything_but(translator, [30, 31, 40]))
    assert set(translator.hypotheses(["one"], constraints=(first,))[0][0].tokens) <= {10, 11, 20, 1}
    with Compilations() as compilations:
        found = translator.hypotheses(["one"], constraints=(second,))[0]
    assert compilations.count == 0
    assert all(set(h.tokens) <= {30, 31, 40, EOS} for h in found)


def test_translator_samples_allowed_translations(translator):
    sampled = dataclasses.replace(
        translator.config,
        search=Sampling(num_samples=6, max_length=3, length_penalty=0.0, temperature=9.0),
    )
    drawing = Translator(sampled, translator.models[0][1], translator.tokenizer)
    (found,) = drawing.hypotheses(["one"], constraints=(alternate,))
    source = translator.source_ids("one")
    scores = score_pairs(drawing, [(source, h.tokens) for h in found])
    assert len({tuple(h.tokens) for h in found}) > 1
    for hypothesis, score in zip(found, scores, strict=True):
        assert obeys(set(), tuple(hypothesis.tokens))
        assert hypothesis.log_prob == pytest.approx(score.log_prob, abs=1e-4)


def test_constraint_of_a_translator_gets_the_row_of_its_sentence(translator):
    """Each sentence has its own word; the translator sorts sentences by length."""
    words = [10, 20, 30, 40]
    forbidden = np.ones((len(words) + 1, translator.tokenizer.vocab_size), bool)
    forbidden[:, EOS] = False
    forbidden[range(1, 5), words] = False  # The first sentence has number 1.
    constraint = jax.tree_util.Partial(forbid_by_row, forbidden)
    for word, found in zip(
        words, translator.hypotheses(SOURCES, constraints=(constraint,)), strict=True
    ):
        assert sorted(h.tokens for h in found) == [[EOS], [word, EOS], [word, word, EOS]]


def test_constraint_that_is_neither_hashable_nor_a_pytree_is_refused(translator):
    @dataclasses.dataclass(frozen=True)
    class Unregistered:
        tokens: jax.Array

        def __call__(self, logits, context):
            return logits

    with pytest.raises(UserError, match=r"hashable, or a pytree .*: got Unregistered; register it"):
        translator.translate(["one"], constraints=(Unregistered(jnp.array([3])),))
