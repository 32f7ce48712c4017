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
    text = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def answer_f1(predicted: str, expected: str) -> float:
    """Returns the F1 of the words of two answers, from 0 to 1.

    >>> answer_f1("the red house", "a house"), answer_f1("", ""), answer_f1("no", "")
    (0.6666666666666666, 1.0, 0.0)
    """
    predicted_words = normalize_answer(predicted).split()
    expected_words = normalize_answer(expected).split()
    if not predicted_words or not expected_words:
        return float(predicted_words == expected_words)

    common = collections.Counter(predicted_words) & collections.Counter(expected_words)
    same = common.total()
    return 2 * same / (len(predicted_words) + len(expected_words))


def answer_scores(
    predicted: Sequence[str],
    expected: Sequence[Sequence[str]],
) -> AnswerScores:
    """Returns the scores of answers, each by the best of its expected answers.

    A question without an expected answer expects "".
    """
    exact = []
    f1 = []
    for answer, golds in zip(predicted, expected, strict=True):
        golds = list(filter(normalize_answer, golds)) or [""]
        normalized = normalize_answer(answer)
        exact.append(any(normalized == normalize_answer(gold) for gold in golds))
        f1.append(max(answer_f1(answer, gold) for gold in golds))

    count = len(predicted)
    return AnswerScores(100 * sum(exact) / count, 100 * sum(f1) / count)
