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
    label = values.get("label")

    texts: list[Any] = [context]
    if isinstance(choices, list):
        texts += choices
    if len(texts) < 2 or not all(isinstance(text, str) and is_unicode(text) for text in texts):
        raise UserError(
            f"{place}: expected context to be a text and choices to be a list of texts, got "
            f"{fields!r:.80}"
        )

    is_number = isinstance(label, int) and not isinstance(label, bool)
    if label is not None and not (is_number and 0 <= label < len(texts) - 1):
        raise UserError(
            f"{place}: expected label to be the number of a choice, from 0 to {len(texts) - 2}, "
            f"got {label!r:.80}"
        )
    return Choices(texts[0], tuple(texts[1:]), label, place)
