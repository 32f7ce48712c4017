"""Entities of tagged words, and their F1, by the rules of conlleval and seqeval."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

OUTSIDE = "O"
_STARTED = ("B", "I")  # prefixes of words that an entity may continue after
_CONTINUING = ("I", "E")  # prefixes of words that may continue one


class EntitySpan(NamedTuple):
    """An entity: its type, and the numbers of its first word and of the word after its last."""

    type: str
    start: int
    end: int


class EntityScores(NamedTuple):
    """Precision, recall and F1 of entities, and the accuracy of tags, in %."""

    precision: float
    recall: float
    f1: float
    accuracy: float


def find_entities(tags: Sequence[str]) -> list[EntitySpan]:
    """Returns the entities of tags such as B-PER, I-PER and O, also with E- and S-.

    As in conlleval, I-PER begins an entity if none of its type precedes.

    >>> find_entities(["B-PER", "I-PER", "O", "I-LOC", "B-LOC"])
    [EntitySpan(type='PER', start=0, end=2), EntitySpan(type='LOC', start=3, end=4), \
EntitySpan(type='LOC', start=4, end=5)]
    """
    found: list[EntitySpan] = []
    previous = OUTSIDE
    for number, tag in enumerate(tags):
        end = number + 1
        prefix, _, name = tag.partition("-")
        previous_prefix, _, previous_name = previous.partition("-")

        may_continue = previous_prefix in _STARTED and prefix in _CONTINUING
        is_continued = may_continue and name == previous_name
        if is_continued:
            found[-1] = found[-1]._replace(end=end)
        elif tag != OUTSIDE:
            found.append(EntitySpan(name, number, end))
        previous = tag
    return found


def type_of_tag(tag: str) -> str:
    """Returns the type of a tag's entity, or a tag without a prefix.

    >>> type_of_tag("B-PER"), type_of_tag("NNP"), type_of_tag("O")
    ('PER', 'NNP', 'O')
    """
    prefix, _, name = tag.partition("-")
    return name or prefix


def names_entities(tags: Iterable[str]) -> bool:
    """Returns whether tags are of entities, and not parts of speech, for example."""
    return all(tag == OUTSIDE or tag[:2] in ("B-", "I-", "E-", "S-") for tag in tags)


def entity_scores(
    predicted: Sequence[Sequence[str]],
    expected: Sequence[Sequence[str]],
) -> EntityScores:
    """Returns the scores of the tags of sentences; an entity counts if type and words are right."""
    num_correct = 0
    num_predicted = 0
    num_expected = 0
    num_equal = 0
    num_words = 0
    for own, gold in zip(predicted, expected, strict=True):
        own_entities = set(find_entities(own))
        gold_entities = set(find_entities(gold))
        correct = own_entities & gold_entities
        num_correct += len(correct)
        num_predicted += len(own_entities)
        num_expected += len(gold_entities)

        num_equal += sum(tag == other for tag, other in zip(own, gold, strict=True))
        num_words += len(gold)

    return EntityScores(
        precision=_percentage(num_correct, num_predicted),
        recall=_percentage(num_correct, num_expected),
        f1=_percentage(2 * num_correct, num_predicted + num_expected),
        accuracy=_percentage(num_equal, num_words),
    )


def _percentage(part: int, whole: int) -> float:
    if not whole:
        return 0.0
    return 100 * part / whole
