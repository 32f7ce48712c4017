"""Accuracy and F1 with confidence intervals, and two linear classifiers as baselines."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxformer.errors import needs_package

_RESAMPLES = 1000
_SEED = 12345
_PENALTY = 0.25  # L2, of the logistic regression


def accuracy(predicted: np.ndarray, expected: np.ndarray) -> float:
    """Returns the percentage of equal labels."""
    is_correct = predicted == expected
    return 100 * float(np.mean(is_correct))


def macro_f1(predicted: np.ndarray, expected: np.ndarray) -> float:
    """Returns the mean F1 of all expected labels, in %."""
    scores = []
    for label in np.unique(expected):
        is_predicted = predicted == label
        is_expected = expected == label
        correct = np.sum(is_predicted & is_expected)
        total = np.sum(is_predicted) + np.sum(is_expected)
        f1 = 2 * correct / total
        scores.append(f1)
    return 100 * float(np.mean(scores))


def with_interval(
    score: Callable[[np.ndarray, np.ndarray], float],
    predicted: Sequence[str],
    expected: Sequence[str],
) -> str:
    """Formats a score of labels in %, with its 95 % interval over resampled texts."""
    predicted_labels = np.array(predicted)
    expected_labels = np.array(expected)
    count = len(predicted_labels)

    # Bootstrap: each row of draws has the indices of as many texts, drawn with replacement.
    generator = np.random.default_rng(_SEED)
    draws = generator.integers(0, count, size=(_RESAMPLES, count))
    resampled = []
    for texts in draws:
        resampled.append(score(predicted_labels[texts], expected_labels[texts]))
    low, high = np.percentile(resampled, [2.5, 97.5])

    value = score(predicted_labels, expected_labels)
    return f"{value:.2f} ({low:.2f} to {high:.2f})"


def bigram_classifiers(
    texts: Sequence[str],
    labels: Sequence[str],
    unseen: Sequence[str],
) -> tuple[list[str], list[str]]:
    """Labels ``unseen`` texts by two classifiers that learn from labeled texts.

    Returns the labels by naive Bayes, and the labels by logistic regression.

    Features are words and pairs of words, separated by spaces, which count once per text. The
    logistic regression of each label scales them by their log ratio of probabilities (Wang and
    Manning 2012, "Baselines and Bigrams") and has an L2 penalty.
    """
    with needs_package("scikit-learn", "which fits linear classifiers", extra="vision"):
        from sklearn.feature_extraction.text import CountVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.naive_bayes import MultinomialNB

    counts = CountVectorizer(
        binary=True,
        ngram_range=(1, 2),
        tokenizer=str.split,
        token_pattern=None,  # pyright: ignore
        lowercase=False,
    )
    features: Any = counts.fit_transform(texts)
    unseen_features: Any = counts.transform(unseen)

    bayes = MultinomialNB().fit(features, labels)
    by_bayes = bayes.predict(unseen_features)

    # One logistic regression for each label, against all other labels.
    margins = []
    for label in bayes.classes_:
        has_label = np.array(labels) == label
        two_classes = MultinomialNB().fit(features, has_label)
        without, with_label = two_classes.feature_log_prob_  # False comes before True.
        log_ratio = with_label - without

        regression = LogisticRegression(
            C=1 / _PENALTY,
            tol=1e-6,
            max_iter=1000,
        )
        regression.fit(features.multiply(log_ratio), has_label)
        scaled = unseen_features.multiply(log_ratio)
        margins.append(regression.decision_function(scaled))

    best = np.argmax(margins, axis=0)
    by_regression = bayes.classes_[best]

    return by_bayes.tolist(), by_regression.tolist()
