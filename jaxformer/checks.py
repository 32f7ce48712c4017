"""Checks of arguments that Python and JAX would silently misinterpret.

A string is also a sequence of one-character strings, and JAX clamps indices that are out of range.
"""

import argparse
import operator
import re
import reprlib
from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex

from jaxformer.errors import UserError


def parse_numbers(text: str) -> list[int]:
    """Parses whole numbers separated by commas; sorts them and removes duplicates."""
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise argparse.ArgumentTypeError(f"expected numbers such as 1 or 1,3: got {text!r}")

    numbers = {int(number) for number in text.split(",")}
    return sorted(numbers)


def check_text(text: Any, name: str) -> None:
    if isinstance(text, bytes):
        raise UserError(f"{name}: expected text, got bytes; decode them first: .decode('utf-8')")

    if not isinstance(text, str):
        raise UserError(f"{name}: expected text, got {reprlib.repr(text)}")


def check_texts(texts: Iterable[str], name: str) -> list[str]:
    """Returns the texts as a list; refuses a single string, and items of other types."""
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
    ids: Iterable[SupportsIndex],
    size: int,
    name: str,
    longest: int | None = None,
) -> list[int]:
    """Returns at most ``longest`` token ids as a list of plain integers, all less than ``size``."""
    try:
        tokens = [operator.index(token) for token in ids]
    except TypeError:
        raise UserError(
            f"{name}: expected a list of token ids, got {reprlib.repr(ids)}; encode text first"
        ) from None

    if longest is not None and len(tokens) > longest:
        raise UserError(
            f"{name}: expected at most {longest} tokens (model.max_length), got {len(tokens)}; "
            "split it"
        )

    for token in tokens:
        if not 0 <= token < size:
            raise UserError(
                f"{name}: expected token ids from 0 to {size - 1}, got {token}; encode text with "
                "the model's own tokenizer"
            )

    return tokens


def check_fraction(number: float, name: str) -> None:
    """Checks that a number is from 0 to 1."""
    if not 0 <= number <= 1:
        raise UserError(f"{name} must be from 0 to 1: got {number}")


def check_same_length(given: Sequence[Any], others: Sequence[Any], name: str, other: str) -> None:
    """Checks that two sequences that correspond item by item have the same length."""
    if len(given) != len(others):
        raise UserError(f"{name}: expected one for each of {len(others)} {other}, got {len(given)}")


def is_unicode(text: str) -> bool:
    """Returns whether UTF-8 can encode a text, which may contain an unpaired surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_unicode(text: Any, place: str) -> None:
    """Checks that this is a text that UTF-8 can encode; error messages begin with ``place``."""
    check_text(text, place)

    if not is_unicode(text):
        raise UserError(f"{place}: not UTF-8")
