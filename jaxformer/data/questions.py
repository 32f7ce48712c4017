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
        return [self.text[span.start : span.end] for span in self.answers or ()]


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
        """Returns the first and the last token of an answer; twice 0, of [CLS], if it has none.

        >>> spans = [(0, 1), (2, 5), (6, 9)]
        >>> window = Window([2, 9, 1, 5, 6, 7, 1], [0, 0, 0, 1, 1, 1, 1], 3, spans)
        >>> window.places(Span(2, 9)), window.places(Span(2, 4)), window.places(Span(8, 12))
        ((4, 5), (4, 4), (0, 0))
        """
        if answer is None or not self.spans:
            return 0, 0

        starts, ends = zip(*self.spans, strict=True)
        if answer.start < starts[0] or answer.end > ends[-1]:
            return 0, 0

        # Tokens may begin before the answer, and end behind it.
        first = max(number for number, start in enumerate(starts) if start <= answer.start)
        last = min(number for number, end in enumerate(ends) if end >= answer.end)
        return self.first + first, self.first + max(first, last)


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
    of_text = [number for number, owner in enumerate(aligned.texts) if owner == 1]
    first = of_text[0] if of_text else len(aligned.ids)
    end = of_text[-1] + 1 if of_text else first

    num_others = len(aligned.ids) - (end - first)
    size = max_length - num_others
    if size < 1:
        raise UserError(
            f"expected a question that leaves space for a text within {max_length} tokens, got one "
            f"of {num_others} tokens; shorten it"
        )

    step = size - min(stride, size // 2)
    windows = []
    for start in range(first, max(end, first + 1), step):
        stop = min(start + size, end)
        windows.append(
            Window(
                tokens=[*aligned.ids[:first], *aligned.ids[start:stop], *aligned.ids[end:]],
                types=[*aligned.types[:first], *aligned.types[start:stop], *aligned.types[end:]],
                first=first,
                spans=aligned.spans[start:stop],
            )
        )
        if stop == end:
            break
    return windows


def read_questions(path: pathlib.Path) -> list[Question]:
    """Reads SQuAD's JSON, or JSON Lines with fields question and context, and perhaps answers.

    A file whose name ends with ``.jsonl`` has JSON Lines. Answers have the fields text and
    answer_start, in a list of objects or, as in Hugging Face's datasets, in an object of lists.
    """
    is_lines = ".jsonl" in path.suffixes
    found = list(_read_lines(path) if is_lines else _read_squad(path))
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
        values = json.loads(content.decode("utf-8-sig"))

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
        spans = [_span(answer, text, place) for answer in _answers(fields["answers"], place)]
        answers = tuple(spans)
    return Question(name, question, text, answers)


def _answers(values: Any, place: str) -> Sequence[Any]:
    """Returns answers as a list of objects."""
    if isinstance(values, dict):
        texts = _list(values, "text", place)
        starts = _list(values, "answer_start", place)
        return [
            {"text": text, "answer_start": start}
            for text, start in zip(texts, starts, strict=False)
        ]
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
    is_index = isinstance(start, int) and not isinstance(start, bool) and start >= 0
    if not is_index or text[start : start + len(found)] != found:
        raise UserError(
            f"{place}: expected answer_start to be the index in context of the first character of "
            f"{found!r:.80}, got {start!r:.80}"
        )
    return Span(start, start + len(found))


def _list(values: Any, name: str, place: str) -> list[Any]:
    found = values.get(name) if isinstance(values, dict) else None
    if not isinstance(found, list):
        raise UserError(
            f"{place}: expected {name} to be a list, as in SQuAD's JSON, got {found!r:.80}; a file "
            "of JSON Lines has a name that ends with .jsonl"
        )
    return found


def _text(values: Any, name: str, place: str) -> str:
    found = values.get(name) if isinstance(values, dict) else None
    if not isinstance(found, str) or not is_unicode(found):
        raise UserError(f"{place}: expected {name} to be a text, got {found!r:.80}")
    return found
