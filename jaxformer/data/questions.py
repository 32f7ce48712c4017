"""Questions about texts: SQuAD's JSON or JSON Lines, and the windows of long texts."""

import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from jaxformer.checks import is_unicode
from jaxformer.data.huggingface_tokenizer import HuggingFaceTokenizer
from jaxformer.data.text_files import open_bytes, read_bytes
from jaxformer.errors import UserError, prefix_errors

# The largest file of SQuAD 2 has 42 MB.
_MAX_BYTES = 1 << 28


class Span(NamedTuple):
    """Characters of a text: the index of the first one, and of the one after the last."""

    start: int
    end: int


class Question(NamedTuple):
    """A question about a text, and its answers, if they are known.

    Attributes:
      id: Name of the question in its file.
      question: The question.
      text: The text that may have the answer.
      answers: Spans of the text, several if people gave several answers; none if it has no answer.
        None if they are not known.
    """

    id: str
    question: str
    text: str
    answers: tuple[Span, ...] | None = None

    def answer_texts(self) -> list[str]:
        """Returns the answers; no text if they are not known."""
        spans = self.answers or ()
        return [self.text[span.start : span.end] for span in spans]


class Window(NamedTuple):
    """A question with a part of its text, as token ids.

    Attributes:
      tokens: Token ids of question and part, with special tokens.
      types: Token types.
      first: Index of the first token of the part.
      spans: Characters of the text of each token of the part.
    """

    tokens: list[int]
    types: list[int]
    first: int
    spans: list[tuple[int, int]]

    def places(self, answer: Span | None) -> tuple[int, int]:
        """Returns the first and the last token of an answer: (0, 0), [CLS], if it is not here.

        >>> tokens = [2, 9, 1, 5, 6, 7, 1]
        >>> types = [0, 0, 0, 1, 1, 1, 1]
        >>> spans = [(0, 1), (2, 5), (6, 9)]
        >>> window = Window(tokens, types, first=3, spans=spans)
        >>> window.places(Span(2, 9)), window.places(Span(2, 4)), window.places(Span(8, 12))
        ((4, 5), (4, 4), (0, 0))
        """
        if answer is None or not self.spans:
            return 0, 0

        starts, ends = zip(*self.spans, strict=True)
        begins_before = answer.start < starts[0]
        ends_behind = answer.end > ends[-1]
        if begins_before or ends_behind:
            return 0, 0

        # Tokens may begin before the answer, and end behind it.
        first = max(number for number, start in enumerate(starts) if start <= answer.start)
        last = min(number for number, end in enumerate(ends) if end >= answer.end)
        last = max(first, last)  # for an answer between two tokens
        return self.first + first, self.first + last


def make_windows(
    tokenizer: HuggingFaceTokenizer,
    question: str,
    text: str,
    *,
    max_length: int,
    stride: int,
) -> list[Window]:
    """Returns a question with its text, or with overlapping parts of a long one.

    As in transformers, each window but the last has ``max_length`` tokens, and shares ``stride``
    tokens of the text with the next one, or half of its part if the question leaves little space.

    Raises:
      UserError: The question leaves no space for a text.
    """
    aligned = tokenizer.align(question, text)
    ids = aligned.ids
    types = aligned.types

    # The text is ids[first:end]; the question, which is text 0, and special tokens are around it.
    of_text = [number for number, owner in enumerate(aligned.texts) if owner == 1]
    if of_text:
        first = of_text[0]
        end = of_text[-1] + 1
    else:
        first = len(ids)
        end = first

    num_others = len(ids) - (end - first)
    size = max_length - num_others
    if size < 1:
        raise UserError(
            f"expected a question that leaves space for a text within {max_length} tokens, got one "
            f"of {num_others} tokens; shorten it"
        )

    shared = min(stride, size // 2)
    step = size - shared
    last_start = max(first, end - 1)  # An empty text has one window, too.
    windows = []
    for start in range(first, last_start + 1, step):
        stop = min(start + size, end)
        window = Window(
            tokens=[*ids[:first], *ids[start:stop], *ids[end:]],
            types=[*types[:first], *types[start:stop], *types[end:]],
            first=first,
            spans=aligned.spans[start:stop],
        )
        windows.append(window)
        if stop == end:
            break
    return windows


def read_questions(path: pathlib.Path) -> list[Question]:
    """Reads SQuAD's JSON, or JSON Lines with fields question and context, and perhaps answers.

    A file whose name ends with ``.jsonl`` has JSON Lines. Answers have the fields text and
    answer_start, in a list of objects or, as in Hugging Face's datasets, in an object of lists.
    """
    if ".jsonl" in path.suffixes:
        found = list(_read_lines(path))
    else:
        found = list(_read_squad(path))
    if not found:
        raise UserError(f"{path}: expected questions, got none")
    return found


def _read_lines(path: pathlib.Path) -> Iterator[Question]:
    for number, line in enumerate(read_bytes(path), start=1):
        place = f"{path}:{number}"
        with prefix_errors(f"{place}: expected a JSON object", ValueError, RecursionError):
            fields = json.loads(line)
        text = _text(fields, "context", place)
        yield _question(fields, text, place, default_id=str(number))


def _read_squad(path: pathlib.Path) -> Iterator[Question]:
    with open_bytes(path) as file:
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise UserError(f"{path}: expected at most {_MAX_BYTES:,} bytes; write JSON Lines (.jsonl)")

    expected = f"{path}: expected SQuAD's JSON, or JSON Lines in a file whose name ends with .jsonl"
    with prefix_errors(expected, ValueError, RecursionError):
        decoded = content.decode("utf-8-sig")
        values = json.loads(decoded)

    for article in _list(values, "data", str(path)):
        for paragraph in _list(article, "paragraphs", f"{path}: an article"):
            text = _text(paragraph, "context", f"{path}: a paragraph")
            for fields in _list(paragraph, "qas", f"{path}: a paragraph"):
                yield _question(fields, text, str(path))


def _question(fields: Any, text: str, place: str, default_id: str = "") -> Question:
    question = _text(fields, "question", place)
    name = str(fields.get("id", default_id))
    place = f"{place}: question {name}"

    answers = None
    if "answers" in fields:
        given = _answers(fields["answers"], place)
        spans = [_span(answer, text, place) for answer in given]
        answers = tuple(spans)
    return Question(
        id=name,
        question=question,
        text=text,
        answers=answers,
    )


def _answers(values: Any, place: str) -> Sequence[Any]:
    """Returns answers as a list of objects."""
    if isinstance(values, dict):
        texts = _list(values, "text", place)
        starts = _list(values, "answer_start", place)
        answers = []
        for text, start in zip(texts, starts, strict=False):
            answer = {"text": text, "answer_start": start}
            answers.append(answer)
        return answers

    if not isinstance(values, list):
        raise UserError(f"{place}: expected a list of answers, got {values!r:.80}")
    return values


def _span(answer: Any, text: str, place: str) -> Span:
    if not isinstance(answer, dict):
        raise UserError(
            f"{place}: expected each answer to be an object with text and answer_start, got "
            f"{answer!r:.80}"
        )

    found = _text(answer, "text", place)
    start: Any = answer.get("answer_start")
    is_integer = isinstance(start, int) and not isinstance(start, bool)
    is_index = is_integer and start >= 0
    is_found = is_index and text[start : start + len(found)] == found
    if not is_found:
        raise UserError(
            f"{place}: expected answer_start to be the index in context of the first character of "
            f"{found!r:.80}, got {start!r:.80}"
        )

    end = start + len(found)
    return Span(start, end)


def _list(values: Any, name: str, place: str) -> list[Any]:
    found = None
    if isinstance(values, dict):
        found = values.get(name)

    if not isinstance(found, list):
        raise UserError(
            f"{place}: expected {name} to be a list, as in SQuAD's JSON, got {found!r:.80}; a file "
            "of JSON Lines has a name that ends with .jsonl"
        )
    return found


def _text(values: Any, name: str, place: str) -> str:
    found = None
    if isinstance(values, dict):
        found = values.get(name)

    if not isinstance(found, str) or not is_unicode(found):
        raise UserError(f"{place}: expected {name} to be a text, got {found!r:.80}")
    return found
