"""Correlations of predicted and expected numbers."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class Correlations(NamedTuple):
    """Pearson's and Spearman's correlation, from -1 to 1; NaN if all numbers are equal."""

    pearson: float
    spearman: float


def correlations(predicted: Sequence[float], expected: Sequence[float]) -> Correlations:
    """Returns the correlations of two sequences.

    Spearman's is Pearson's of the ranks; equal numbers share the mean of their ranks.

    >>> pearson, spearman = correlations([1, 2, 3], [1, 4, 9])
    >>> round(pearson, 6), round(spearman, 6)
    (0.989743, 1.0)
    """
    own = np.asarray(predicted, np.float64)
    gold = np.asarray(expected, np.float64)
    own_ranks = _ranks(own)
    gold_ranks = _ranks(gold)

    return Correlations(
        pearson=_pearson(own, gold),
        spearman=_pearson(own_ranks, gold_ranks),
    )


def _pearson(x: Float[np.ndarray, " N"], y: Float[np.ndarray, " N"]) -> float:
    x = x - x.mean()
    y = y - y.mean()
    covariance = x @ y
    scale = np.sqrt((x @ x) * (y @ y))

    if not scale:
        return float("nan")
    return float(covariance / scale)


def _ranks(x: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    _, group, counts = np.unique(x, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean_of_group = last - (counts - 1) / 2
    return mean_of_group[group]
