"""Chooses heads and words that resemble figures 3, 4 and 5 of the paper."""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int


@dataclasses.dataclass(frozen=True)
class PaperFigure:
    """Layer, heads and query of a figure of self-attention, as indices from 0."""

    layer: int
    heads: list[int]
    token: int | None  # the query; None: all queries


def paper_figures(
    attention: Float[np.ndarray, "L H S S"],
    tokens: Sequence[str],
    *,
    layer: int | None = None,
    heads: Sequence[int] | None = None,
    token: int | None = None,
) -> dict[int, PaperFigure]:
    """Chooses layer, heads and query of the figures 3, 4 and 5.

    Punctuation and the last token, end-of-sentence, are neither chosen nor counted as keys, since
    idle heads attend to them.

    - Figure 3, a long-distance dependency of one word, in all heads: the word with the largest
      mean distance to the words that it attends to, relative to uniform attention. Without this
      normalization, the first and last words would always win. Attention of a language model is
      uniform over a word and the words before it.
    - Figure 4, anaphora: the word and the two heads with the largest sum of maximum weights, over
      keys other than the word itself and its neighbors. The head with the larger weight comes
      first.
    - Figure 5, heads that perform different tasks: the two heads whose attention differs most,
      by the mean total variation distance over all queries.

    The ``layer`` is by default the second-to-last, as in the paper; ``heads`` are the heads to
    choose from; ``token`` is the query of figures 3 and 4.
    """
    if layer is None:
        layer = max(0, len(attention) - 2)
    if heads is None:
        heads = range(attention.shape[1])

    among = list(heads)
    weights = attention[layer, among]  # [heads, queries, keys]
    is_word = _words(tokens)

    # [queries, keys]; 0 for keys that are not words.
    position = np.arange(len(tokens))
    difference = position[:, None] - position
    distance = np.abs(difference) * is_word
    sharpness = _sharpness(weights, distance)

    if token is None:
        reach = _reach(weights, distance)
        far = _best_word(reach, is_word)
        ascending = np.sort(sharpness, axis=0)
        two_sharpest = ascending[-2:].sum(axis=0)
        sharp = _best_word(two_sharpest, is_word)
    else:
        far = token
        sharp = token

    own_sharpness = sharpness[:, sharp]
    descending = np.argsort(-own_sharpness, kind="stable")
    sharpest = [among[i] for i in descending[:2]]
    different = [among[i] for i in _most_different(weights)]
    return {
        3: PaperFigure(layer, heads=among, token=far),
        4: PaperFigure(layer, heads=sharpest, token=sharp),
        5: PaperFigure(layer, heads=different, token=None),
    }


def _sharpness(
    weights: Float[np.ndarray, "H S S"],
    distance: Int[np.ndarray, "S S"],
) -> Float[np.ndarray, "H S"]:
    """Returns the maximum weight of each head and query, over keys that are not neighbors."""
    is_far = distance >= 2
    far_weights = np.where(is_far, weights, 0)
    return far_weights.max(axis=2)


def _reach(
    weights: Float[np.ndarray, "H S S"],
    distance: Int[np.ndarray, "S S"],
) -> Float[np.ndarray, " S"]:
    """Returns the total distance of each query's attention, relative to uniform attention."""
    # In a language model, a word sees only itself and the words before it.
    after_the_word = np.triu(weights, 1)
    is_causal = not after_the_word.any()
    if is_causal:
        seen = np.tri(len(distance))
    else:
        seen = np.ones_like(distance)

    # The mean distance of the words that are seen.
    seen_distance = distance * seen
    total = seen_distance.sum(axis=1)
    num_seen = seen.sum(axis=1)
    uniform = np.maximum(total / num_seen, 1e-9)

    weighted = weights * distance
    attended = weighted.sum(axis=(0, 2))
    return attended / uniform


def _best_word(
    values: Float[np.ndarray, " S"],
    is_word: Bool[np.ndarray, " S"],
) -> int:
    """Returns the index of the word with the largest value, which is not negative."""
    values = np.where(is_word, values, -1)
    return int(np.argmax(values))


def _words(tokens: Sequence[str]) -> Bool[np.ndarray, " S"]:
    """Returns a mask of the tokens with a letter or digit; all True if there are none."""
    first = ("[CLS]", "<s>")
    words = []
    for token in tokens[:-1]:
        has_letter_or_digit = any(map(str.isalnum, token))
        is_word = has_letter_or_digit and token not in first
        words.append(is_word)
    words.append(False)  # end-of-sentence

    found = np.array(words)
    if not found.any():
        return np.ones(len(tokens), bool)
    return found


def _most_different(weights: Float[np.ndarray, "H S S"]) -> tuple[int, ...]:
    """Returns the pair of heads with the largest mean total variation distance; (0,) if alone."""

    def distance(pair: tuple[int, int]) -> float:
        one, other = weights[list(pair)]
        difference = np.abs(one - other).sum(axis=1)
        total_variation = difference.mean() / 2
        return float(total_variation)

    heads = range(len(weights))
    pairs = itertools.combinations(heads, 2)
    return max(pairs, key=distance, default=(0,))
