"""Classes that training never sees, or that no split has, are named."""

import numpy as np
import pytest

from jaxformer.data.classes import check_variety, describe_classes
from jaxformer.errors import UserError

NAMES = ["red", "green", "blue", "gray"]


@pytest.mark.parametrize(
    ("train", "valid", "notes"),
    [
        ([0, 1, 2, 3], [3, 2, 1, 0], []),
        ([0, 1, 2, 3], [0], []),
        (
            [0, 1],
            [1, 1, 2, 3],
            [
                "note: classes without training examples: blue, gray; they are 50.0% of the "
                "validation examples, which no model can learn to recognize"
            ],
        ),
        ([0, 3], [3], ["note: classes without any example: green, blue"]),
    ],
)
def test_classes_that_a_split_lacks_are_named(train, valid, notes):
    assert describe_classes(NAMES, np.array(train), np.array(valid)) == notes


def test_many_names_are_shortened():
    names = [f"c{i}" for i in range(1000)]

    (note,) = describe_classes(names, np.array([0, 1]), np.array([0]))

    first_ten = ", ".join(names[2:12])
    assert note == f"note: classes without any example: {first_ten} and 988 more"


def test_too_few_and_too_many_classes_are_refused():
    check_variety("train", 2, 2)
    check_variety("train", 10, 20)
    check_variety("train", 19, 19)

    with pytest.raises(UserError, match="train: expected examples of at least two classes"):
        check_variety("train", 1, 20)
    with pytest.raises(UserError, match="nearly every one has a label of its own: 11 labels of 20"):
        check_variety("train", 11, 20)
