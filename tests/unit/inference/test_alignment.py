"""Word alignment from hand-made attention, and of words to pieces."""

import functools
import itertools
import operator
import random

import jax
import numpy as np
import pytest

from jaxformer.config import ModelConfig
from jaxformer.data.bpe import train_tokenizer
from jaxformer.data.tokenizer import BOS
from jaxformer.errors import UserError
from jaxformer.inference.alignment import (
    align_by_maximum,
    align_in_order,
    cross_attention,
    word_weights,
    words_of_pieces,
)
from jaxformer.inference.forced_pass import PairBatch
from jaxformer.inference.members import Ensemble, Member, recorded_weights
from jaxformer.inference.parameter_arrays import abstract_params
from jaxformer.models.transformer import Transformer


def align_words(weights, source_words, target_words):
    shape = (max(target_words) + 1, max(source_words) + 1)
    by_word = word_weights(weights, source_words, target_words, shape)
    return align_by_maximum(by_word)


def test_end_of_sentence_is_never_aligned_to():
    for weights, source, target, expected in (
        ([0.1, 0.9], [0, -1], [0], [(0, 0)]),
        ([1.0], [-1], [0], []),
        ([0.5, 0.5], [0, -1], [-1], []),
    ):
        assert align_words(np.array([weights]), source, target) == expected


def test_ties_go_to_the_first_source_word():
    weights = np.full((1, 3), 1 / 3)
    assert align_words(weights, [0, 1, 2], [0]) == [(0, 0)]


def mean_of_sums(weights, source_words, target_words, word):
    """Returns the weight of each of four source words: summed over its pieces, for a target word.

    The sums are averaged over the pieces of the target word.
    """
    target_pieces = [t for t in range(8) if target_words[t] == word]
    totals = []
    for other in range(4):
        source_pieces = [s for s in range(8) if source_words[s] == other]
        sums = []
        for t in target_pieces:
            sums.append(sum(weights[t, s] for s in source_pieces))
        totals.append(sum(sums) / len(target_pieces))
    return totals


def test_against_loops_over_words():
    """Pieces of a source word are added, and of a target word averaged."""
    random_numbers = np.random.default_rng(0)
    source = [0, 0, 1, 2, 2, 2, 3, -1]
    target = [0, 1, 1, 1, 2, 3, 3, -1]
    for _ in range(50):
        weights = random_numbers.dirichlet(np.ones(8), size=8)
        expected = []
        for word in range(4):
            totals = mean_of_sums(weights, source, target, word)
            expected.append((totals.index(max(totals)), word))
        assert align_words(weights, source, target) == expected


def all_alignments_in_order(targets, sources):
    for size in range(min(targets, sources) + 1):
        for chosen in itertools.combinations(range(targets), size):
            for others in itertools.combinations(range(sources), size):
                yield list(zip(others, chosen, strict=True))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 1), (4, 4), (3, 5), (5, 4)])
def test_align_in_order_finds_the_best_alignment(shape):
    targets, sources = shape
    random_numbers = np.random.default_rng(1)
    concentration = np.full(max(1, sources), 0.3)
    for _ in range(20):
        weights = random_numbers.dirichlet(concentration, size=targets)
        weights = weights[:, :sources]  # [T, S]

        def probability(couples, weights=weights):
            unaligned = sum(weights.shape) - 2 * len(couples)
            product = 0.05**unaligned
            for s, t in couples:
                product *= weights[t, s] + 1e-6
            return product

        best = max(all_alignments_in_order(targets, sources), key=probability)
        found = align_in_order(weights)
        assert probability(found) == pytest.approx(probability(best), rel=1e-9)
        assert found == sorted(found)


@pytest.mark.parametrize(
    ("pieces", "text", "words"),
    [
        (["▁Ein", "▁Hu", "nd", "."], "Ein Hund.", [0, 1, 1, 1]),
        (["▁", "a", "▁", "b"], "a b", [0, 0, 1, 1]),
        (["▁a", None, "▁b", None], "a b", [0, -1, 1, -1]),
        # The four bytes of a character and the letters after it are one word.
        (["▁", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "x", "▁y"], "😀x y", [0] * 6 + [1]),
        # Only spaces separate words, one or more.
        (["▁a", "<0x09>", "b", "▁c"], "  a\tb   c", [0, 0, 0, 1]),
        (["▁10", "▁000", "▁km"], "10\u00a0000  km", [0, 0, 1]),
        # Our normalization, exactly, although everything is periodic.
        (["▁ha", "ha", "ha", "▁ha"], "ha\u00adhaha \u200bha", [0, 0, 0, 1]),
        (["▁", "é", "<0xC3>", "<0xA9>", "▁fi", "fi"], "e\u0301é ﬁﬁ", [0, 0, 0, 0, 1, 1]),
        # A byte that is not a character.
        (["▁a", "<0xFF>", "▁b"], "a\ufffd b", [0, 0, 1]),
        # Normalization of an imported tokenizer changes characters, lengths and spaces.
        (["▁...", "▁he", "▁said"], "… he said", [0, 1, 2]),
        (["▁a", "▁\ufffd", "▁b"], "a 漢字 b", [0, 1, 2]),
        (["▁a", "▁"], "a", [0, -1]),  # A trailing space.
        ([], "", []),
    ],
)
def test_words_of_pieces(pieces, text, words):
    assert words_of_pieces(pieces, text) == words


def test_words_of_a_real_tokenizer():
    """Every word of random text is spelled by its pieces in order."""
    lines = ["the man and the woman", "a dog jumps over the red fence", "two men are here"]
    tokenizer = train_tokenizer(lines * 50, 300)
    vocabulary = ["the", "A\u0308rger", "😀", "½", "x", "漢字", "<0x41>", "1\u00a00", "ﬁﬁ", "a\tb"]

    generator = random.Random(0)
    for _ in range(200):
        words = generator.choices(vocabulary, k=generator.randint(1, 9))
        spaces = generator.choice([" ", "  "])
        text = spaces.join(words)

        ids = tokenizer.encode(text)
        pieces = [tokenizer.piece(i) for i in ids]
        numbers = words_of_pieces(pieces, text)
        assert numbers == sorted(numbers)

        spelled = []
        numbered = zip(numbers, ids, strict=True)
        for _, group in itertools.groupby(numbered, operator.itemgetter(0)):
            word = tokenizer.decode(i for _, i in group)
            spelled.append(word.strip())
        assert spelled == [tokenizer.decode(tokenizer.encode(word)) for word in words]


def test_attention_without_weights_is_refused_by_the_name_of_its_model():
    model = Transformer(ModelConfig(vocab_size=11, d_model=8, d_ff=8, num_heads=2, num_layers=1))
    weights = np.ones((1, 1, 2, 3, 3))  # [L, B, H, T, T]
    layers = {"self_attention": {"weights": (weights,)}}
    recorded = {"intermediates": {"decoder": {"layers": layers}}}
    assert recorded_weights(model, recorded, "decoder", "self_attention") is weights

    for stack, sublayer in (("decoder", "cross_attention"), ("encoder", "self_attention")):
        message = f"records {stack}/{sublayer} .* Transformer records no"
        with pytest.raises(UserError, match=message):
            recorded_weights(model, recorded, stack, sublayer)


def test_cross_attention_is_the_mean_over_heads_of_the_layer_and_over_models():
    config = ModelConfig(
        vocab_size=11,
        d_model=8,
        d_ff=8,
        num_heads=2,
        num_layers=2,
        max_length=16,
    )
    src = np.array([[3, 4, 5, 1]])
    tgt_in = np.array([[BOS, 6, 7]])
    random_numbers = np.random.default_rng(0)

    def random_member():
        def draw(leaf):
            return random_numbers.normal(size=leaf.shape).astype(np.float32)

        params = jax.tree.map(draw, abstract_params(config))
        return Member(Transformer(config), params)

    members = Ensemble((random_member(), random_member()))
    layers = (0, 1)

    apply = jax.jit(functools.partial(Transformer(config).apply, mutable="intermediates"))
    means = []
    for member, layer in zip(members, layers, strict=True):
        _, recorded = apply({"params": member.params}, src, tgt_in)
        decoder = jax.device_get(recorded)["intermediates"]["decoder"]
        [weights] = decoder["layers"]["cross_attention"]["weights"]  # [L, B, H, T, S]
        heads = weights[layer, 0]
        means.append(heads.mean(axis=0))
    expected = np.mean(means, axis=0)  # [T, S]

    # Padding has no effect.
    padded_src = np.pad(src, ((0, 1), (0, 3)))
    padded_tgt_in = np.pad(tgt_in, ((0, 1), (0, 2)))
    batch = PairBatch(padded_src, padded_tgt_in, tgt_out=padded_tgt_in)
    result = np.asarray(cross_attention(members, layers, batch))
    np.testing.assert_allclose(result[0, :3, :4], expected, rtol=1e-5)
    assert not result[0, :3, 4:].any()
