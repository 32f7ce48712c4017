"""Scores of answers, computed by hand from the rules of SQuAD's script."""

import pytest

from jaxformer.evaluation.answer_scores import answer_scores

# Predicted, expected, exact match, and F1 as 2 * common words / all words.
CASES = [
    ("the Norman dynasty", ["Norman dynasty!"], 1, 1),
    ("Norman", ["the Norman dynasty"], 0, 2 * 1 / (1 + 2)),
    ("a dog and a dog", ["dog, dog"], 0, 2 * 2 / (3 + 2)),
    ("dog dog dog", ["dog"], 0, 2 * 1 / (3 + 1)),
    ("cat", ["dog", "the cat"], 1, 1),
    ("in 1066", ["1067", "1066"], 0, 2 * 1 / (2 + 1)),
    ("Anathema", ["an athema"], 0, 0),  # articles are whole words
    ("U.S. army", ["us Army"], 1, 1),
    ("twenty-one", ["twentyone"], 1, 1),
    ("", [], 1, 1),
    ("cat", [], 0, 0),
    ("", ["cat"], 0, 0),
    ("the", ["cat"], 0, 0),
    ("", ["the", "cat"], 0, 0),  # an expected answer of articles alone is left out
    ("", ["the"], 1, 1),
    ("Ångström", ["ångström"], 1, 1),
]


@pytest.mark.parametrize(("predicted", "expected", "exact", "f1"), CASES)
def test_one_answer(predicted, expected, exact, f1):
    found = answer_scores([predicted], [expected])
    assert found.exact_match == 100 * exact
    assert found.f1 == pytest.approx(100 * f1)


def test_scores_are_means_over_questions():
    predicted, expected, exact, f1 = zip(*CASES, strict=True)
    found = answer_scores(predicted, expected)
    assert found.exact_match == pytest.approx(100 * sum(exact) / len(CASES))
    assert found.f1 == pytest.approx(100 * sum(f1) / len(CASES))
