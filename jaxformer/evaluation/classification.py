"""Accuracy and F1 with confidence intervals, and two linear classifiers as baselines."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxformer.errors import needs_package

_RESAMPLES, _SEED = 1000, 12345
_PENALTY = 0.25  # L2, of the logistic regression


def accuracy(predicted: np.ndarray, expected: np.ndarray) -> float:
    """Returns the percentage of equal labels."""
    return 100 * float(np.mean(predicted == expected))


def macro_f1(predicted: np.ndarray, expected: np.ndarray) -> float:
    """Returns the mean F1 of all expected labels, in %."""
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


def bigram_classifiers(
    texts: Sequence[str], labels: Sequence[str], unseen: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Labels ``unseen`` texts by naive Bayes and logistic regression, learned from labeled texts.

    Features are words and pairs of words, separated by spaces, which count once per text. The
    logistic regression of each label scales them by their log ratio of probabilities (Wang and
    Manning 2012, "Baselines and Bigrams") and has an L2 penalty.
    """
    with needs_package("scikit-learn", "which fits linear classifiers", extra="vision"):
        from sklearn.feature_extraction.text import CountVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.naive_bayes import MultinomialNB
    words = {"tokenizer": str.split, "token_pattern": None, "lowercase": False}
    counts = CountVectorizer(binary=True, ngram_range=(1, 2), **words)
    known: Any = counts.fit_transform(texts)
    new: Any = counts.transform(unseen)
    bayes, scores = MultinomialNB().fit(known, labels), []
    for label in bayes.classes_:
        own = np.array(labels) == label
        outside, inside = MultinomialNB().fit(known, own).feature_log_prob_
        linear = LogisticRegression(C=1 / _PENALTY, tol=1e-6, max_iter=1000)
        linear.fit(known.multiply(inside - outside), own)
        scores.append(linear.decision_function(new.multiply(inside - outside)))
    return bayes.predict(new).tolist(), bayes.classes_[np.argmax(scores, axis=0)].tolist()
