"""Checks of arguments that Python and JAX take without complaint and get wrong.

A string is a sequence of one-character strings, and indexing in JAX clamps what is out of range.
"""

import operator
import reprlib
from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex

from jaxformer.errors import UserError


def check_text(text: Any, name: str) -> None:
    """Refuses everything but a string.

    Raises:
      UserError: Names the argument and the type that was given.
    """
    if isinstance(text, bytes):
        raise UserError(f"{name}: expected text, got bytes; decode them first: .decode('utf-8')")
    if not isinstance(text, str):
        raise UserError(f"{name}: expected text, got {reprlib.repr(text)}")


def check_texts(texts: Iterable[str], name: str) -> list[str]:
    """The texts as a list; a single string is not taken for a list of its characters.

    Raises:
      UserError: This is one string, no iterable, or holds something other than strings.
    """
    if isinstance(texts, str | bytes):
        shown = reprlib.repr(texts)
        raise UserError(
            f"{name}: expected a list of texts, got one string, {shown}; put it into a list: "
            f"[{shown}]"
        )
    if not isinstance(texts, Iterable):
        raise UserError(f"{name}: expected a list of texts, got {reprlib.repr(texts)}")
    texts = list(texts)
    for number, text in enumerate(texts):
        check_text(text, f"{name}[{number}]")
    return texts


def check_tokens(
    ids: Iterable[SupportsIndex], size: int, name: str, longest: int | None = None
) -> list[int]:
    """The token ids of a sentence as a list of plain integers, all of which a model has.

    Args:
      ids: Integers of any kind.
      size: How many ids there are.
      name: What to call the ids in messages.
      longest: The most tokens that there may be.

    Raises:
      UserError: An id is out of range, there are too many, or these are not integers.
    """
    try:
        tokens = [operator.index(token) for token in ids]
    except TypeError:
        raise UserError(
            f"{name}: expected a list of token ids, got {reprlib.repr(ids)}; encode text first"
        ) from None
    if longest is not None and len(tokens) > longest:
        raise UserError(
            f"{name}: expected at most {longest} tokens (model.max_length), got {len(tokens)}; "
            "split the sentence"
        )
    wrong = next((token for token in tokens if not 0 <= token < size), None)
    if wrong is not None:
        raise UserError(
            f"{name}: expected token ids from 0 to {size - 1}, got {wrong}; encode text with the "
            "model's own tokenizer"
        )
    return tokens


def check_same_length(given: Sequence[Any], others: Sequence[Any], name: str, other: str) -> None:
    """Refuses two sequences that must go together item by item and do not.

    Raises:
      UserError: Their lengths differ.
    """
    if len(given) != len(others):
        raise UserError(f"{name}: expected one for each of {len(others)} {other}, got {len(given)}")
