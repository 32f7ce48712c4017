"""Splitting of paragraphs into sentences, which is what translation models are trained on."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from jaxformer.checks import check_unicode
from jaxformer.data.languages import short_code
from jaxformer.errors import needs_package

T = TypeVar("T")

# Languages that are written without spaces between sentences.
_WITHOUT_SPACES = ("ja", "zh", "zh-Hant")


def split_sentences(text: str, language: str, place: str = "text") -> list[str]:
    """Returns the sentences of a text, without the spaces around them.

    >>> split_sentences("Dr. Smith paid. He left at 5 p.m. on Monday.", "en")
    ['Dr. Smith paid.', 'He left at 5 p.m. on Monday.']

    Args:
      text: A paragraph.
      language: Code of its language; a language that sentencex does not know has the rules of
        English.
      place: Beginning of error messages.

    Raises:
      UserError: The text is not valid Unicode, or the package sentencex is missing.
    """
    check_unicode(text, place)
    with needs_package("sentencex", "which splits text into sentences", extra="sentences"):
        import sentencex

    # sentencex 1.0.32 panics at some spaces of several bytes. Its sentences together are its text.
    with_plain_spaces = re.sub(r"\s", " ", text)
    sentences = []
    start = 0
    # pyright finds no names in this module, which is compiled.
    found = sentencex.segment(short_code(language), with_plain_spaces)  # pyright: ignore
    for sentence in found:
        end = start + len(sentence)
        sentences.append(text[start:end].strip())
        start = end
    return list(filter(None, sentences))


def join_sentences(sentences: Iterable[str], language: str) -> str:
    """Returns the paragraph of some sentences; Chinese and Japanese have no spaces in between.

    >>> join_sentences(["Er kam.", "Sie ging."], "de")
    'Er kam. Sie ging.'
    """
    separator = "" if short_code(language) in _WITHOUT_SPACES else " "
    return separator.join(filter(None, sentences))


def join_ranks(lists: Sequence[Sequence[T]], join: Callable[[Iterable[T]], T]) -> list[T]:
    """Joins the first items of all lists, the second ones, ...; the last of a list is repeated.

    >>> join_ranks([["one", "a"], ["dog"]], " ".join)
    ['one dog', 'a dog']
    """
    joined = []
    for rank in range(max(map(len, lists), default=0)):
        of_rank = [each[min(rank, len(each) - 1)] for each in lists]
        joined.append(join(of_rank))
    return joined
