"""Classes of labeled examples: notes on classes that training or validation lack."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int

from jaxformer.data.findings import list_first
from jaxformer.errors import UserError

_MOST_NAMES = 10
# In a smaller split, nearly every example may rightly have a class of its own.
_FEW_EXAMPLES = 20


def check_variety(train: str, classes: int, examples: int) -> None:
    """Refuses a training split with one class only, or with nearly a class for each example."""
    if classes == 1:
        raise UserError(
            f"{train}: expected examples of at least two classes to train on, got {examples:,} of "
            "one class; mix examples that are sorted by class before they are split"
        )

    if examples >= _FEW_EXAMPLES and examples / classes < 2:
        raise UserError(
            f"{train}: expected several examples of each class, but nearly every one has a label "
            f"of its own: {classes:,} labels of {examples:,} examples; check where the labels are"
        )


def describe_classes(
    names: Sequence[str],
    train: Int[np.ndarray, " N"],
    valid: Int[np.ndarray, " M"],
) -> list[str]:
    """Returns log messages about classes that training never sees, or that no split has.

    Args:
      names: Names of all classes of the model.
      train: Classes of the training examples, as indices of names.
      valid: Classes of the validation examples.
    """
    num_classes = len(names)
    train_counts = np.bincount(train, minlength=num_classes)
    valid_counts = np.bincount(valid, minlength=num_classes)
    in_train = train_counts > 0
    in_valid = valid_counts > 0
    notes = []

    unseen = in_valid & ~in_train
    if unseen.any():
        num_unseen = valid_counts[unseen].sum()
        share = num_unseen / len(valid)
        notes.append(
            f"note: classes without training examples: {_list_names(names, unseen)}; they are "
            f"{share:.1%} of the validation examples, which no model can learn to recognize"
        )

    absent = ~(in_train | in_valid)
    if absent.any():
        notes.append(f"note: classes without any example: {_list_names(names, absent)}")

    return notes


def _list_names(names: Sequence[str], is_listed: Bool[np.ndarray, " C"]) -> str:
    found = [name for name, listed in zip(names, is_listed, strict=True) if listed]
    first = found[:_MOST_NAMES]
    return list_first(first, len(found))
