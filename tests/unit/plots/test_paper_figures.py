"""The heads and words chosen for figures 3 to 5, against plain loops."""

import itertools

import numpy as np
import pytest

from jaxformer.plots.paper_figures import PaperFigure, paper_figures

TOKENS = ["▁it", "▁made", "▁them", ",", "▁all", "▁glad", "</s>"]
S = len(TOKENS)
WORDS = [0, 1, 2, 4, 5]  # Attention to a comma or the end is ignored.


def random_layers(layers, heads, seed):
    weights = np.exp(2 * np.random.default_rng(seed).normal(size=(layers, heads, S, S)))
    return (weights / weights.sum(axis=-1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("seed", range(10))
def test_choices_equal_plain_loops(seed):
    weights = random_layers(2, 4, seed)
    layer = weights[0].astype(np.float64)
    heads = range(4)

    def reach(i):
        seen = sum(layer[h, i, j] * abs(i - j) for h in heads for j in WORDS)
        return seen / (sum(abs(i - j) for j in WORDS) / S)

    def sharp(h, i):
        return max(layer[h, i, j] for j in WORDS if abs(i - j) >= 2)

    def differ(a, b):
        return sum(abs(layer[a, i, j] - layer[b, i, j]) for i in range(S) for j in range(S))

    choices = paper_figures(weights, TOKENS)
    assert choices[3].token == max(WORDS, key=reach)
    word = max(WORDS, key=lambda i: sum(sorted(sharp(h, i) for h in heads)[-2:]))
    assert choices[4].token == word
    assert choices[4].heads == sorted(heads, key=lambda h: -sharp(h, word))[:2]
    pair = max(itertools.combinations(heads, 2), key=lambda pair: differ(*pair))
    assert choices[5] == PaperFigure(layer=0, heads=list(pair), token=None)


def test_given_layer_heads_and_token_are_kept():
    choices = paper_figures(random_layers(6, 4, 0), TOKENS)
    assert {choice.layer for choice in choices.values()} == {4}  # the second-to-last
    choices = paper_figures(random_layers(3, 4, 0), TOKENS, layer=2, heads=[1, 3], token=6)
    for number in (3, 4):
        assert (choices[number].layer, choices[number].token) == (2, 6)
    assert {frozenset(choice.heads) for choice in choices.values()} == {frozenset({1, 3})}


@pytest.mark.parametrize("tokens", [["</s>"], [".", "</s>"], ["a", "</s>"]])
def test_the_smallest_sentences_and_models_work(tokens):
    weights = np.full((1, 1, len(tokens), len(tokens)), 1 / len(tokens), np.float32)
    for choice in paper_figures(weights, tokens).values():
        assert (choice.layer, choice.heads) == (0, [0])
        assert choice.token in (None, 0)
