"""Hypotheses of a search for one item: token ids with their scores, and with their texts."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from jaxformer.search import BeamResult


class Decoded(NamedTuple):
    """Hypotheses of one sentence, best first; there may be fewer than the beam size."""

    tokens: list[list[int]]
    scores: list[float]
    log_probs: list[float]


class Hypothesis(NamedTuple):
    """One translation of a sentence, or one text that a model writes for another input.

    Attributes:
      text: The translation.
      tokens: Its token ids; the last is end-of-sentence, unless it was cut at the maximum length.
      score: ``log_prob`` divided by the length penalty; hypotheses are ranked by it. Of a contrast,
        the sum of the tokens' scores takes the place of ``log_prob``.
      log_prob: Natural log of the probability that the model assigns to the tokens.
    """

    text: str
    tokens: list[int]
    score: float
    log_prob: float


def read_row(
    result: BeamResult,
    row: int,
    *,
    n_best: int,
    candidates: Int[np.ndarray, " C"] | None = None,
) -> Decoded:
    """Returns the needed hypotheses of one row of a result, whose arrays are NumPy's.

    Args:
      result: The result of a search.
      row: Number of the row.
      n_best: Number of hypotheses that are needed; 0 for all.
      candidates: Tokens that the ids are indices of; None for the whole vocabulary.
    """
    existing = np.flatnonzero(result.scores[row] != -np.inf)
    if n_best:
        existing = existing[:n_best]

    tokens = np.asarray(result.tokens[row])  # [N, T]
    if candidates is not None:
        tokens = candidates[tokens]

    lengths = result.lengths[row]
    return Decoded(
        tokens=[tokens[i, : lengths[i]].tolist() for i in existing],
        scores=result.scores[row, existing].tolist(),
        log_probs=result.log_probs[row, existing].tolist(),
    )


def with_texts(
    decoded: Decoded,
    detokenize: Callable[[Sequence[int]], str],
) -> list[Hypothesis]:
    """Returns the hypotheses of one item with their texts."""
    hypotheses = []
    for tokens, score, log_prob in zip(*decoded, strict=True):
        hypothesis = Hypothesis(
            text=detokenize(tokens),
            tokens=tokens,
            score=score,
            log_prob=log_prob,
        )
        hypotheses.append(hypothesis)
    return hypotheses
