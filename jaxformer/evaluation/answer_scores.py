"""Exact match and F1 of answers, by the rules of SQuAD's official script, version 2.0."""

import collections
import re
import string
from collections.abc import Sequence
from typing import NamedTuple

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = dict.fromkeys(map(ord, string.punctuation))


class AnswerScores(NamedTuple):
    """Means over questions, in %."""

    exact_match: float
    f1: float


def normalize_answer(text: str) -> str:
    """Returns an answer in lower case, without punctuation, articles and extra spaces.

    >>> normalize_answer(" The U.S., an  example")
    'us example'
    """
    lower = text.lower()
    unpunctuated = lower.translate(_PUNCTUATION)
    without_articles = _ARTICLES.sub(" ", unpunctuated)
    words = without_articles.split()
    return " ".join(words)


def answer_f1(predicted: str, expected: str) -> float:
    """Returns the F1 of the words of two answers, from 0 to 1.

    >>> answer_f1("the red house", "a house"), answer_f1("", ""), answer_f1("no", "")
    (0.6666666666666666, 1.0, 0.0)
    """
    predicted_words = normalize_answer(predicted).split()
    expected_words = normalize_answer(expected).split()
    if not predicted_words or not expected_words:
        return float(predicted_words == expected_words)

    predicted_counts = collections.Counter(predicted_words)
    expected_counts = collections.Counter(expected_words)
    common = predicted_counts & expected_counts
    num_words = len(predicted_words) + len(expected_words)
    return 2 * common.total() / num_words


def answer_scores(
    predicted: Sequence[str],
    expected: Sequence[Sequence[str]],
) -> AnswerScores:
    """Returns the scores of answers, each by the best of its expected answers.

    A question without an expected answer expects "".
    """
    num_exact = 0
    f1_scores = []
    for answer, golds in zip(predicted, expected, strict=True):
        golds = [gold for gold in golds if normalize_answer(gold)] or [""]

        normalized_golds = [normalize_answer(gold) for gold in golds]
        num_exact += normalize_answer(answer) in normalized_golds

        f1_scores.append(max(answer_f1(answer, gold) for gold in golds))

    count = len(predicted)
    return AnswerScores(
        exact_match=100 * num_exact / count,
        f1=100 * sum(f1_scores) / count,
    )
