"""Accuracy and F1 with confidence intervals, and two linear classifiers as baselines."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.optimize
import scipy.sparse

_RESAMPLES, _SEED = 1000, 12345
_PENALTY = 0.25  # L2, of the logistic regression


def accuracy(predicted: np.ndarray, expected: np.ndarray) -> float:
    """Returns the percentage of equal labels."""
    return 100 * float(np.mean(predicted == expected))


def macro_f1(predicted: np.ndarray, expected: np.ndarray) -> float:
    """Returns the mean F1 of all expected labels, in %.

    >>> round(macro_f1(np.array(["a", "b", "b"]), np.array(["a", "a", "b"])), 2)
    66.67
    """
    scores = []
    for label in np.unique(expected):
        correct = np.sum((predicted == label) & (expected == label))
        scores.append(2 * correct / (np.sum(predicted == label) + np.sum(expected == label)))
    return 100 * float(np.mean(scores))


def with_interval(
    score: Callable[[np.ndarray, np.ndarray], float], found: Sequence[str], expected: Sequence[str]
) -> str:
    """Formats a score in % with its 95 % interval over resampled texts."""
    ours, theirs = np.array(found), np.array(expected)
    draws = np.random.default_rng(_SEED).integers(0, len(ours), (_RESAMPLES, len(ours)))
    low, high = np.percentile([score(ours[rows], theirs[rows]) for rows in draws], [2.5, 97.5])
    return f"{score(ours, theirs):.2f} ({low:.2f} to {high:.2f})"


class BigramClassifiers:
    """Naive Bayes on words and pairs of words, and logistic regression on its ratios.

    A word or pair counts once per text. The logistic regression of each label scales them by their
    log ratio of probabilities (Wang and Manning 2012, "Baselines and Bigrams") and has an L2
    penalty. Words are separated by spaces.
    """

    def __init__(self, texts: Sequence[str], labels: Sequence[str]) -> None:
        features = dict.fromkeys(f for text in texts for f in _features(text))
        self._columns = {feature: i for i, feature in enumerate(features)}
        x = self._matrix(texts)
        self.labels = sorted(set(labels))
        # Weights and bias of the score of each label.
        self._bayes: list[tuple[np.ndarray, float]] = []
        self._logistic: list[tuple[np.ndarray, float]] = []
        for label in self.labels:
            own = np.array(labels) == label
            inside, outside = (np.asarray(x[rows].sum(axis=0))[0] + 1.0 for rows in (own, ~own))
            likelihoods = np.log(inside / inside.sum())
            self._bayes.append((likelihoods, np.log(own.mean())))
            ratios = likelihoods - np.log(outside / outside.sum())
            fitted = _fit_logistic(x.multiply(ratios).tocsr(), own)
            self._logistic.append((ratios * fitted[:-1], fitted[-1]))

    def naive_bayes(self, texts: Sequence[str]) -> list[str]:
        """Returns the label of each text by naive Bayes."""
        return self._best(texts, self._bayes)

    def logistic(self, texts: Sequence[str]) -> list[str]:
        """Returns the label of each text by logistic regression."""
        return self._best(texts, self._logistic)

    def _best(self, texts: Sequence[str], scores: list[tuple[np.ndarray, float]]) -> list[str]:
        weights, biases = map(np.array, zip(*scores, strict=True))
        best = (self._matrix(texts) @ weights.T + biases).argmax(axis=1)
        return [self.labels[i] for i in best]

    def _matrix(self, texts: Sequence[str]) -> scipy.sparse.csr_matrix:
        rows = [[self._columns[f] for f in _features(t) if f in self._columns] for t in texts]
        ends = np.cumsum([0, *map(len, rows)])
        columns = np.array([i for row in rows for i in row], int)
        shape = (len(texts), len(self._columns))
        return scipy.sparse.csr_matrix((np.ones(len(columns)), columns, ends), shape)


def _features(text: str) -> dict[str, None]:
    words = text.split()
    return dict.fromkeys([*words, *map(" ".join, itertools.pairwise(words))])


def _fit_logistic(x: scipy.sparse.csr_matrix, own: np.ndarray) -> np.ndarray:
    """Returns weights and bias that minimize the sum of logistic losses and the L2 penalty."""
    signs = np.where(own, 1.0, -1.0)

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        margins = signs * (x @ weights[:-1] + weights[-1])
        slopes = -signs / (1 + np.exp(np.clip(margins, -500, 500)))
        decay = _PENALTY * np.append(weights[:-1], 0.0)
        gradient = np.append(x.T @ slopes, slopes.sum()) + decay
        return float(np.logaddexp(0, -margins).sum() + 0.5 * decay @ weights), gradient

    start = np.zeros(x.get_shape()[1] + 1)
    result: Any = scipy.optimize.minimize(loss, start, jac=True, method="L-BFGS-B")
    return result.x
