"""Multiple choice: contexts, and several texts for each, one of them right."""

import json
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from jaxformer.checks import is_unicode
from jaxformer.data.text_files import read_bytes
from jaxformer.errors import UserError, prefix_errors


class Choices(NamedTuple):
    """A context and its choices.

    Attributes:
      context: The first text of each pair, such as the beginning of a story, or a question.
      choices: The second texts.
      label: Number of the right choice, from 0; None if it is not known.
      place: Such as "train.jsonl:17".
    """

    context: str
    choices: tuple[str, ...]
    label: int | None
    place: str


def read_choices(path: pathlib.Path) -> Iterator[Choices]:
    """Yields the examples of a file of JSON Lines: context, choices, and perhaps label."""
    for number, line in enumerate(read_bytes(path), start=1):
        place = f"{path}:{number}"
        with prefix_errors(f"{place}: expected a JSON object", ValueError, RecursionError):
            fields = json.loads(line)
        yield _choices(fields, place)


def _choices(fields: Any, place: str) -> Choices:
    values = fields if isinstance(fields, dict) else {}
    context: Any = values.get("context")
    choices: Any = values.get("choices")
    label: Any = values.get("label")

    has_choices = isinstance(choices, list) and len(choices) > 0
    if not has_choices or not all(map(_is_text, [context, *choices])):
        raise UserError(
            f"{place}: expected context to be a text and choices to be a list of texts, got "
            f"{fields!r:.80}"
        )

    is_integer = isinstance(label, int) and not isinstance(label, bool)
    is_number = is_integer and 0 <= label < len(choices)
    if label is not None and not is_number:
        raise UserError(
            f"{place}: expected label to be the number of a choice, from 0 to {len(choices) - 1}, "
            f"got {label!r:.80}"
        )

    return Choices(
        context=context,
        choices=tuple(choices),
        label=label,
        place=place,
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and is_unicode(value)
