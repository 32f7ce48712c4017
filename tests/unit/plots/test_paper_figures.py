"""The heads and words chosen for figures 3 to 5, against plain loops."""

import itertools

import numpy as np
import pytest

from jaxformer.plots.paper_figures import PaperFigure, paper_figures

TOKENS = ["▁it", "▁made", "▁them", ",", "▁all", "▁glad", "</s>"]
S = len(TOKENS)
WORDS = [0, 1, 2, 4, 5]  # Attention to a comma or the end is ignored.


def random_layers(layers, heads, seed):
    rng = np.random.default_rng(seed)
    scores = 2 * rng.normal(size=(layers, heads, S, S))
    odds = np.exp(scores)
    weights = odds / odds.sum(axis=-1, keepdims=True)
    return weights.astype(np.float32)


@pytest.mark.parametrize("seed", range(10))
def test_choices_equal_plain_loops(seed):
    weights = random_layers(2, 4, seed)
    layer = weights[0].astype(np.float64)
    heads = range(4)

    def reach(query):
        """Mean distance to attended words, relative to the distance under uniform attention."""
        seen = 0.0
        uniform = 0.0
        for key in WORDS:
            distance = abs(query - key)
            uniform += distance / S
            for head in heads:
                seen += layer[head, query, key] * distance
        return seen / uniform

    def sharp(head, query):
        far = [key for key in WORDS if abs(query - key) >= 2]
        return max(layer[head, query, key] for key in far)

    def sharpest_two(query):
        by_head = sorted(sharp(head, query) for head in heads)
        return sum(by_head[-2:])

    def differ(pair):
        one, other = layer[list(pair)]
        return abs(one - other).sum()

    choices = paper_figures(weights, TOKENS)

    farthest = max(WORDS, key=reach)
    assert choices[3].token == farthest

    word = max(WORDS, key=sharpest_two)
    by_sharpness = sorted(heads, key=lambda head: -sharp(head, word))
    assert choices[4].token == word
    assert choices[4].heads == by_sharpness[:2]

    pairs = itertools.combinations(heads, 2)
    most_different = max(pairs, key=differ)
    assert choices[5] == PaperFigure(
        layer=0,
        heads=list(most_different),
        token=None,
    )


def test_given_layer_heads_and_token_are_kept():
    weights = random_layers(6, 4, 0)
    choices = paper_figures(weights, TOKENS)
    layers = {choice.layer for choice in choices.values()}
    assert layers == {4}  # the second-to-last

    weights = random_layers(3, 4, 0)
    choices = paper_figures(weights, TOKENS, layer=2, heads=[1, 3], token=6)
    for number in (3, 4):
        assert choices[number].layer == 2
        assert choices[number].token == 6
    for choice in choices.values():
        assert set(choice.heads) == {1, 3}


@pytest.mark.parametrize("tokens", [["</s>"], [".", "</s>"], ["a", "</s>"]])
def test_the_smallest_sentences_and_models_work(tokens):
    size = len(tokens)
    shape = (1, 1, size, size)
    weights = np.full(shape, 1 / size, np.float32)

    choices = paper_figures(weights, tokens)
    for choice in choices.values():
        assert choice.layer == 0
        assert choice.heads == [0]
        assert choice.token in (None, 0)
