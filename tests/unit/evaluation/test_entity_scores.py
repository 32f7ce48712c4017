"""Entities by the rules of conlleval, and their scores, computed by hand."""

import itertools

import pytest

from jaxformer.evaluation.entity_scores import entity_scores, find_entities, names_entities


def conlleval(tags):
    """The entities by the rules that conlleval.pl spells out, one condition after another."""
    found = []
    start = None
    previous = ""
    previous_type = ""
    for number, tag in enumerate([*tags, "O"]):
        prefix, _, kind = tag.partition("-")
        ends = (
            (previous == "B" and prefix in "BSO")
            or (previous == "I" and prefix in "BSO")
            or previous in ("E", "S")
            or (previous not in ("O", "") and previous_type != kind)
        )
        if start is not None and ends:
            found.append((previous_type, start, number))
            start = None

        begins = (
            prefix in ("B", "S")
            or (previous in ("E", "S", "O", "") and prefix in ("E", "I"))
            or (prefix != "O" and previous_type != kind)
        )
        if begins:
            start = number

        previous = prefix
        previous_type = kind
    return found


@pytest.mark.parametrize("prefixes", ["BI", "BIES"])
def test_all_short_sequences_have_the_entities_of_conlleval(prefixes):
    tags = ["O", *(f"{prefix}-{kind}" for prefix in prefixes for kind in ("PER", "LOC"))]
    for sequence in itertools.product(tags, repeat=4):
        assert find_entities(sequence) == conlleval(sequence), sequence


def test_types_may_have_hyphens():
    assert find_entities(["B-work-of-art", "I-work-of-art"]) == [("work-of-art", 0, 2)]


def test_scores():
    """The example of the page of seqeval: three of its entities differ in their borders."""
    expected = [["O", "O", "O", "B-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    predicted = [["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    found = entity_scores(predicted, expected)
    assert found == pytest.approx((50, 50, 50, 100 * 8 / 10))

    # One of two is right, and one of four is found.
    predicted = [["B-PER", "O", "O", "B-LOC"]]
    expected = [["B-PER", "B-PER", "B-PER", "B-PER"]]
    found = entity_scores(predicted, expected)
    assert found == pytest.approx((50, 25, 100 * 2 * 1 / (2 + 4), 25))

    assert entity_scores([["O"]], [["O"]]) == (0, 0, 0, 100)


def test_other_tags_are_no_entities():
    assert names_entities(["O", "B-PER", "I-PER", "S-LOC"])
    assert not names_entities(["NN", "O"])
