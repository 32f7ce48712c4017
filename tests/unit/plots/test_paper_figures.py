"""The heads and words chosen for figures 3 to 5, against plain loops."""

import itertools

import numpy as np
import pytest

from jaxformer.plots.paper_figures import PaperFigure, paper_figures

TOKENS = ["▁it", "▁made", "▁them", ",", "▁all", "▁glad", "</s>"]
S = len(TOKENS)
WORDS = [0, 1, 2, 4, 5]  # Attention to a comma or the end is ignored.


def random_layers(layers, heads, seed):
    odds = np.exp(2 * np.random.default_rng(seed).normal(size=(layers, heads, S, S)))
    weights = odds / odds.sum(axis=-1, keepdims=True)
    return weights.astype(np.float32)


@pytest.mark.parametrize("seed", range(10))
def test_choices_equal_plain_loops(seed):
    weights = random_layers(2, 4, seed)
    layer = weights[0].astype(np.float64)
    heads = range(4)

    def reach(query):
        """Mean distance to attended words, relative to the distance under uniform attention."""
        seen = sum(layer[h, query, key] * abs(query - key) for h in heads for key in WORDS)
        uniform = sum(abs(query - key) for key in WORDS) / S
        return seen / uniform

    def sharp(head, query):
        return max(layer[head, query, key] for key in WORDS if abs(query - key) >= 2)

    def sharpest_two(query):
        by_head = sorted(sharp(head, query) for head in heads)
        return sum(by_head[-2:])

    def differ(pair):
        one, other = layer[list(pair)]
        return abs(one - other).sum()

    choices = paper_figures(weights, TOKENS)

    assert choices[3].token == max(WORDS, key=reach)
    word = max(WORDS, key=sharpest_two)
    assert choices[4].token == word
    assert choices[4].heads == sorted(heads, key=lambda head: -sharp(head, word))[:2]
    pair = max(itertools.combinations(heads, 2), key=differ)
    assert choices[5] == PaperFigure(layer=0, heads=list(pair), token=None)


def test_given_layer_heads_and_token_are_kept():
    choices = paper_figures(random_layers(6, 4, 0), TOKENS)
    assert {choice.layer for choice in choices.values()} == {4}  # the second-to-last

    choices = paper_figures(random_layers(3, 4, 0), TOKENS, layer=2, heads=[1, 3], token=6)
    for number in (3, 4):
        assert choices[number].layer == 2
        assert choices[number].token == 6
    for choice in choices.values():
        assert set(choice.heads) == {1, 3}


@pytest.mark.parametrize("tokens", [["</s>"], [".", "</s>"], ["a", "</s>"]])
def test_the_smallest_sentences_and_models_work(tokens):
    size = len(tokens)
    weights = np.full((1, 1, size, size), 1 / size, np.float32)

    for choice in paper_figures(weights, tokens).values():
        assert choice.layer == 0
        assert choice.heads == [0]
        assert choice.token in (None, 0)
