"""Edit distances against the recursive definition, and error rates by hand."""

import functools
import itertools
import random

import pytest

from jaxformer.errors import UserError
from jaxformer.evaluation.word_error_rate import (
    Edits,
    character_edits,
    edit_distance,
    error_rates,
    word_edits,
)


def by_definition(given, reference):
    """Tries every edit at every place."""

    @functools.cache
    def distance(i, j):
        if i == len(given) or j == len(reference):
            return len(given) - i + len(reference) - j
        choices = [distance(i + 1, j) + 1, distance(i, j + 1) + 1]
        choices.append(distance(i + 1, j + 1) + (given[i] != reference[j]))
        return min(choices)

    return distance(0, 0)


def test_all_short_texts_have_the_distance_of_the_definition():
    texts = []
    for length in range(4):
        texts += map("".join, itertools.product("abc", repeat=length))
    for given, reference in itertools.product(texts, texts):
        assert edit_distance(given, reference) == by_definition(given, reference)


def test_long_texts():
    generator = random.Random(0)
    for _ in range(50):
        given = generator.choices("abcd", k=generator.randrange(30))
        reference = generator.choices("abcd", k=generator.randrange(30))
        assert edit_distance(given, reference) == by_definition(tuple(given), tuple(reference))


def test_rates_are_of_the_whole_corpus():
    """One error in 1 + 3 words, where the mean of both rates would be 50."""
    rates = error_rates(["ten", "one two three"], ["two", "one two three"])
    assert rates.words == 25
    assert rates.characters == pytest.approx(100 * 2 / 16)


def test_blanks_do_not_count():
    assert word_edits(" a  b\n", "a b") == Edits(0, 2)
    assert character_edits(" a  b\n", "a b") == Edits(0, 3)


def test_empty_texts():
    assert word_edits("", "a b").rate == 100
    assert word_edits("a b", "") == Edits(2, 0)
    assert word_edits("a b", "").rate == 100
    assert word_edits("", "").rate == 0
    assert word_edits("a b c", "d").rate == 300


def test_as_many_references_as_texts():
    with pytest.raises(UserError, match="expected as many references as texts, 2, got 1"):
        error_rates(["a", "b"], ["a"])
