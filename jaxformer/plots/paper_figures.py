"""Chooses heads and words that resemble figures 3, 4 and 5 of the paper."""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float


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
    layer = max(0, len(attention) - 2) if layer is None else layer
    among = list(range(attention.shape[1]) if heads is None else heads)
    weights = attention[layer, among]
    is_word = _words(tokens)
    position = np.arange(len(tokens))
    distance = np.abs(position[:, None] - position) * is_word
    seen = np.ones_like(distance) if np.triu(weights, 1).any() else np.tri(len(tokens))
    evenly = np.maximum((distance * seen).sum(axis=1) / seen.sum(axis=1), 1e-9)
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
    """Returns a mask of the tokens with a letter or digit; all True if there are none."""
    first = ("[CLS]", "<s>")
    words = [token not in first and any(map(str.isalnum, token)) for token in tokens[:-1]]
    found = np.array([*words, False])
    return found if found.any() else np.ones(len(tokens), bool)


def _most_different(weights: Float[np.ndarray, "H S S"]) -> tuple[int, ...]:
    """Returns the pair of heads with the largest mean total variation distance; (0,) if alone."""

    def distance(pair: tuple[int, int]) -> float:
        one, other = weights[list(pair)]
        return float(np.abs(one - other).sum(axis=1).mean() / 2)

    return max(itertools.combinations(range(len(weights)), 2), key=distance, default=(0,))
