"""Accuracy and F1 of classes, with intervals, and two linear classifiers to compare with."""

import collections
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize
import scipy.sparse
from jaxtyping import Float, Int

_RESAMPLES, _SEED = 1000, 12345


class Figure(NamedTuple):
    """A score in %, and the ends of its 95 % interval by the bootstrap."""

    score: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.score:.2f} ({self.low:.2f} to {self.high:.2f})"


def accuracy(found: np.ndarray, expected: np.ndarray) -> float:
    """Returns the percentage of equal labels."""
    return 100 * float(np.mean(found == expected))


def macro_f1(found: np.ndarray, expected: np.ndarray) -> float:
    """Returns the mean F1 of all expected labels, in %.

    >>> round(macro_f1(np.array(["a", "b", "b"]), np.array(["a", "a", "b"])), 2)
    66.67
    """
    scores = []
    for label in np.unique(expected):
        correct = np.sum((found == label) & (expected == label))
        scores.append(2 * correct / (np.sum(found == label) + np.sum(expected == label)))
    return 100 * float(np.mean(scores))


def with_interval(
    score: Callable[[np.ndarray, np.ndarray], float], found: Sequence[str], expected: Sequence[str]
) -> Figure:
    """Returns a score, and the 2.5th and 97.5th percentile over resampled texts."""
    ours, theirs = np.array(found), np.array(expected)
    draws = np.random.default_rng(_SEED).integers(0, len(ours), (_RESAMPLES, len(ours)))
    samples = [score(ours[rows], theirs[rows]) for rows in draws]
    return Figure(score(ours, theirs), *np.percentile(samples, [2.5, 97.5]))


class BigramClassifiers:
    """Naive Bayes on words and pairs of words, and logistic regression on its ratios.

    Each text counts a word or pair once. The logistic regression, one for each label, weighs them
    by their log ratio of probabilities (Wang and Manning 2012, "Baselines and Bigrams").
    """

    def __init__(self, texts: Sequence[str], labels: Sequence[str], penalty: float = 0.25) -> None:
        """Trains both.

        Args:
          texts: Training texts, tokenized by spaces.
          labels: Their labels.
          penalty: L2 penalty of the weights of the logistic regression.
        """
        counts = collections.Counter(f for text in texts for f in _features(text))
        self._columns = {feature: i for i, feature in enumerate(counts)}
        x = self._matrix(texts)
        self.labels = sorted(set(labels))
        classes = np.array(labels)
        self._likelihoods, self._ratios, self._priors, weights = [], [], [], []
        for label in self.labels:
            own = classes == label
            inside, outside = (np.asarray(x[rows].sum(axis=0))[0] + 1.0 for rows in (own, ~own))
            likelihoods = np.log(inside / inside.sum())
            ratio = likelihoods - np.log(outside / outside.sum())
            self._likelihoods.append(likelihoods)
            self._ratios.append(ratio)
            self._priors.append(np.log(own.mean()))
            weights.append(_logistic(x.multiply(ratio).tocsr(), own, penalty))
        self._weights = np.array(weights)

    def naive_bayes(self, texts: Sequence[str]) -> list[str]:
        """Returns the label of each text by naive Bayes."""
        x = self._matrix(texts)
        return self._best(x @ np.array(self._likelihoods).T + np.array(self._priors))

    def logistic(self, texts: Sequence[str]) -> list[str]:
        """Returns the label of each text by logistic regression."""
        x = self._matrix(texts)
        ratios = np.array(self._ratios) * self._weights[:, :-1]
        return self._best(x @ ratios.T + self._weights[:, -1])

    def _best(self, scores: Float[np.ndarray, "N C"]) -> list[str]:
        return [self.labels[i] for i in scores.argmax(axis=1)]

    def _matrix(self, texts: Sequence[str]) -> scipy.sparse.csr_matrix:
        rows = [[self._columns[f] for f in _features(t) if f in self._columns] for t in texts]
        ends = np.cumsum([0, *map(len, rows)])
        columns: Int[np.ndarray, " N"] = np.array([i for row in rows for i in row], int)
        shape = (len(texts), len(self._columns))
        return scipy.sparse.csr_matrix((np.ones(len(columns)), columns, ends), shape)


def _features(text: str) -> dict[str, None]:
    words = text.split()
    return dict.fromkeys([*words, *map(" ".join, itertools.pairwise(words))])


def _logistic(
    x: scipy.sparse.csr_matrix, own: np.ndarray, penalty: float
) -> Float[np.ndarray, " F1"]:
    """Returns weights and bias that minimize the sum of logistic losses and the L2 penalty."""
    signs = np.where(own, 1.0, -1.0)

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        margins = signs * (x @ weights[:-1] + weights[-1])
        slopes = -signs / (1 + np.exp(np.clip(margins, -500, 500)))
        decay = penalty * np.append(weights[:-1], 0.0)
        gradient = np.append(x.T @ slopes, slopes.sum()) + decay
        return float(np.logaddexp(0, -margins).sum() + 0.5 * decay @ weights), gradient

    start = np.zeros(x.get_shape()[1] + 1)
    found: Any = scipy.optimize.minimize(loss, start, jac=True, method="L-BFGS-B")
    return found.x
