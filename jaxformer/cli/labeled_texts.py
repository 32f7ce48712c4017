"""Reads labeled texts, on which a classifier is scored."""

import pathlib
from collections.abc import Sequence
from typing import Any

from jaxformer.errors import UserError
from jaxformer.files import is_stream


def read_labeled_texts(
    path: pathlib.Path,
    known: Sequence[str],
    *,
    pairs: bool,
) -> tuple[list[Any], list[str]]:
    """Returns texts and their labels; refuses labels that are not known.

    Args:
      path: Lines of a label and a text, or of a label and two texts.
      known: Labels of the model.
      pairs: Return pairs of texts, and not single texts.

    Raises:
      UserError: The file has no line, another form, or a label that no prediction could match.
    """
    rows = _read_pairs(path) if pairs else _read_texts(path)
    if not rows:
        raise UserError(f"{path}: expected lines of a label and a text, got none")

    texts = [text for text, _ in rows]
    labels = [label for _, label in rows]
    _check_labels(path, labels, known)
    return texts, labels


def _read_texts(path: pathlib.Path) -> list[tuple[str, str]]:
    from jaxformer.data.labeled import LabeledCorpus

    corpus = LabeledCorpus()
    return list(corpus.rows(path) if is_stream(path) else corpus.pairs(str(path)))


def _read_pairs(path: pathlib.Path) -> list[tuple[Any, str]]:
    from jaxformer.data.text_pairs import read_labeled_pairs

    return [(line.text, line.label) for line in read_labeled_pairs(path)]


def _check_labels(path: pathlib.Path, expected: Sequence[str], known: Sequence[str]) -> None:
    """Refuses labels that the model does not have, which no prediction could match."""
    unknown = [label for label in dict.fromkeys(expected) if label not in known]
    if not unknown:
        return

    named = []
    for label in unknown:
        own = _meant_label(label, known)
        if own is not None:
            named.append(f"{own} for {label}")
    advice = "give a file with these labels"
    if named:
        advice = f"write {', '.join(named[:9])}"

    line = expected.index(unknown[0]) + 1
    raise UserError(
        f"{path}:{line}: expected labels of the model, "
        f"{', '.join(known[:9])}: got {', '.join(unknown[:9])}; {advice}"
    )


def _meant_label(label: str, known: Sequence[str]) -> str | None:
    """Returns the label of the model that a number of a class, or another case, may stand for."""
    if label.isdecimal() and int(label) < len(known):
        return known[int(label)]
    return next((each for each in known if each.casefold() == label.casefold()), None)
