"""Which heads and which word of a sentence come closest to what figures 3, 4 and 5 show."""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float


@dataclasses.dataclass(frozen=True)
class PaperFigure:
    """A choice from encoder self-attention; everything counts from 0.

    Attributes:
      layer: The layer: the paper shows layer 5 of 6, this is the last but one.
      heads: The heads, at least one.
      token: The word that looks; None: all of them.
    """

    layer: int
    heads: list[int]
    token: int | None


def paper_figures(
    encoder: Float[np.ndarray, "L H S S"],
    tokens: Sequence[str],
    *,
    layer: int | None = None,
    heads: Sequence[int] | None = None,
    token: int | None = None,
) -> dict[int, PaperFigure]:
    """The choice for each of the figures 3, 4 and 5.

    The last token, end of sentence, and punctuation are neither chosen nor counted as looked at:
    heads that have nothing to say rest there.

    - Figure 3, a long-distance dependency of one word, in all heads: the word with the largest
      mean distance between it and what it looks at, as a multiple of what evenly spread attention
      would give it; else the first and last words, far from most, would always win.
    - Figure 4, anaphora: the two heads and the word that are sharpest together, by the largest
      weight of each on a single word that is neither the word itself nor beside it. The sharper
      head comes first.
    - Figure 5, heads that perform different tasks: the two heads whose attention differs most,
      by the mean total variation distance over all words.

    Args:
      encoder: Weights of encoder self-attention, queries before keys.
      tokens: S source pieces, end of sentence included.
      layer: Choose in this layer; None: the last but one.
      heads: Choose among these heads; None: all.
      token: The word of figures 3 and 4; None: choose it.
    """
    layer = max(0, len(encoder) - 2) if layer is None else layer
    among = list(range(encoder.shape[1]) if heads is None else heads)
    weights = encoder[layer, among]
    is_word = _words(tokens)
    position = np.arange(len(tokens))
    distance = np.abs(position[:, None] - position) * is_word
    evenly = np.maximum(distance.mean(axis=1), 1e-9)
    reach = np.where(is_word, (weights * distance).sum(axis=(0, 2)) / evenly, -1)
    # [heads, words]
    sharpness = np.where(distance >= 2, weights, 0).max(axis=2)
    sharpest = np.where(is_word, np.sort(sharpness, axis=0)[-2:].sum(axis=0), -1)
    far = int(np.argmax(reach)) if token is None else token
    sharp = int(np.argmax(sharpest)) if token is None else token
    pair = np.argsort(-sharpness[:, sharp], kind="stable")[:2]
    return {
        3: PaperFigure(layer, among, far),
        4: PaperFigure(layer, [among[i] for i in pair], sharp),
        5: PaperFigure(layer, [among[i] for i in _most_different(weights)], None),
    }


def _words(tokens: Sequence[str]) -> Bool[np.ndarray, " S"]:
    """Which tokens have a letter or digit; all if none has."""
    found = np.array([any(map(str.isalnum, token)) for token in tokens[:-1]] + [False])
    return found if found.any() else np.ones(len(tokens), bool)


def _most_different(weights: Float[np.ndarray, "H S S"]) -> tuple[int, ...]:
    pairs = itertools.combinations(range(len(weights)), 2)
    return max(pairs, key=lambda pair: _distance(*weights[list(pair)]), default=(0,))


def _distance(one: Float[np.ndarray, "S S"], other: Float[np.ndarray, "S S"]) -> float:
    """Mean total variation distance of the rows."""
    return float(np.abs(one - other).sum(axis=1).mean() / 2)
