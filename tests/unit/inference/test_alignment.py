"""Word alignment from hand-made attention, and of words to pieces."""

import functools
import itertools
import math
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
from jaxformer.inference.members import Ensemble, Member, recorded_weights
from jaxformer.inference.parameter_arrays import abstract_params
from jaxformer.models.transformer import Transformer


def align_words(weights, source_words, target_words):
    shape = (max(target_words) + 1, max(source_words) + 1)
    return align_by_maximum(word_weights(weights, source_words, target_words, shape))


def test_end_of_sentence_is_never_aligned_to():
    assert align_words(np.array([[0.1, 0.9]]), [0, -1], [0]) == [(0, 0)]
    assert align_words(np.array([[1.0]]), [-1], [0]) == []
    assert align_words(np.array([[0.5, 0.5]]), [0, -1], [-1]) == []
    # Ties go to the first source word.
    assert align_words(np.full((1, 3), 1 / 3), [0, 1, 2], [0]) == [(0, 0)]


def test_against_loops_over_words():
    """Pieces of a source word are added, and of a target word averaged."""
    random_numbers = np.random.default_rng(0)
    source, target = [0, 0, 1, 2, 2, 2, 3, -1], [0, 1, 1, 1, 2, 3, 3, -1]
    for _ in range(50):
        weights = random_numbers.dirichlet(np.ones(8), size=8)
        expected = []
        for word in range(4):
            totals = []
            for other in range(4):
                pieces = [t for t in range(8) if target[t] == word]
                sums = [sum(weights[t, s] for s in range(8) if source[s] == other) for t in pieces]
                totals.append(sum(sums) / len(pieces))
            expected.append((totals.index(max(totals)), word))
        assert align_words(weights, source, target) == expected


def all_alignments_in_order(targets, sources):
    for size in range(min(targets, sources) + 1):
        for chosen in itertools.combinations(range(targets), size):
            for others in itertools.combinations(range(sources), size):
                yield list(zip(others, chosen, strict=True))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 1), (4, 4), (3, 5), (5, 4)])
def test_align_in_order_finds_the_best_alignment(shape):
    random_numbers = np.random.default_rng(1)
    for _ in range(20):
        weights = random_numbers.dirichlet(np.full(max(1, shape[1]), 0.3), size=shape[0])
        weights = weights[:, : shape[1]]

        def probability(couples, weights=weights):
            product = 0.05 ** (sum(weights.shape) - 2 * len(couples))
            return product * math.prod(weights[t, s] + 1e-6 for s, t in couples)

        best = max(all_alignments_in_order(*shape), key=probability)
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
    lines = ["the man and the woman", "a dog jumps over the red fence", "two men are here"] * 50
    tokenizer = train_tokenizer(lines, 300)
    generator = random.Random(0)
    vocabulary = ["the", "A\u0308rger", "😀", "½", "x", "漢字", "<0x41>", "1\u00a00", "ﬁﬁ", "a\tb"]
    for _ in range(200):
        words = generator.choices(vocabulary, k=generator.randint(1, 9))
        text = generator.choice([" ", "  "]).join(words)
        pieces = [tokenizer.piece(i) for i in tokenizer.encode(text)]
        numbers = words_of_pieces(pieces, text)
        assert numbers == sorted(numbers)
        groups = itertools.groupby(
            zip(numbers, tokenizer.encode(text), strict=True), lambda p: p[0]
        )
        spelled = [tokenizer.decode(i for _, i in group).strip() for _, group in groups]
        assert spelled == [tokenizer.decode(tokenizer.encode(word)) for word in words]


def test_attention_without_weights_is_refused_by_the_name_of_its_model():
    model = Transformer(ModelConfig(vocab_size=11, d_model=8, d_ff=8, num_heads=2, num_layers=1))
    weights = np.ones((1, 1, 2, 3, 3))
    recorded = {
        "intermediates": {"decoder": {"layers": {"self_attention": {"weights": (weights,)}}}}
    }
    assert recorded_weights(model, recorded, "decoder", "self_attention") is weights
    for stack, sublayer in (("decoder", "cross_attention"), ("encoder", "self_attention")):
        with pytest.raises(
            UserError, match=f"records {stack}/{sublayer} .* Transformer records no"
        ):
            recorded_weights(model, recorded, stack, sublayer)


def test_cross_attention_is_the_mean_over_heads_of_the_layer_and_over_models():
    config = ModelConfig(vocab_size=11, d_model=8, d_ff=8, num_heads=2, num_layers=2, max_length=16)
    src, tgt_in = np.array([[3, 4, 5, 1]]), np.array([[BOS, 6, 7]])
    random_numbers = np.random.default_rng(0)

    def random_member():
        normal, shapes = random_numbers.normal, abstract_params(config)
        params = jax.tree.map(lambda a: normal(size=a.shape).astype("f4"), shapes)
        return Member(Transformer(config), params)

    members = Ensemble((random_member(), random_member()))
    apply = jax.jit(functools.partial(Transformer(config).apply, mutable="intermediates"))
    expected = []
    for member, layer in zip(members, (0, 1), strict=True):
        _, recorded = jax.device_get(apply({"params": member.params}, src, tgt_in))
        stack = recorded["intermediates"]["decoder"]["layers"]["cross_attention"]["weights"][0]
        expected.append(stack[layer, 0].mean(axis=0))
    # Padding has no effect.
    padded = (np.pad(src, ((0, 1), (0, 3))), np.pad(tgt_in, ((0, 1), (0, 2))))
    result = np.asarray(cross_attention(members, (0, 1), *padded))
    np.testing.assert_allclose(result[0, :3, :4], np.mean(expected, axis=0), rtol=1e-5)
    assert not result[0, :3, 4:].any()
