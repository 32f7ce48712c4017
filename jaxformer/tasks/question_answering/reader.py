"""Answers to questions with a trained model."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxformer.checks import check_text
from jaxformer.config import data_section
from jaxformer.data.annotated import AnnotatedConfig
from jaxformer.data.encoded_text import EncodedText
from jaxformer.data.huggingface_tokenizer import HuggingFaceTokenizer
from jaxformer.data.questions import Span, Window, make_windows
from jaxformer.errors import UserError, prefix_errors
from jaxformer.inference.encoder_outputs import encoder_outputs, method_outputs
from jaxformer.inference.weights import EncoderPredictor
from jaxformer.kinds.annotated_texts import QUESTION_ANSWERING

# Windows are longer than the sentences of other batches.
_BATCH_SIZE = 16
# Spans whose probabilities add up to 1, as in transformers.
_NUM_CANDIDATES = 20


class Answer(NamedTuple):
    """An answer to a question.

    Attributes:
      text: The answer; "" if the text has none.
      start: Index of its first character in the text.
      end: Index of the character after its last one.
      score: Sum of the logits of its first and its last token.
      probability: Its probability among the best spans.
    """

    text: str
    start: int
    end: int
    score: float
    probability: float


class Reader(EncoderPredictor):
    """Answers questions about texts with the model of a workdir.

    >>> reader = Reader.load("runs/squad")  # doctest: +SKIP
    >>> reader.answer("Who runs?", "A dog runs.").text  # doctest: +SKIP
    'A dog'

    Attributes:
      config: The config of the run. Its ``data.max_length`` and ``data.stride`` are the length of
        the windows that a long text is split into, and the number of tokens that two of them share.
      params: Parameters.
      tokenizer: The tokenizer that the model was trained with.
      weights: Description of the checkpoint, such as "step 2000".
    """

    kinds = (QUESTION_ANSWERING,)
    tokenizer: HuggingFaceTokenizer

    def _describe_outputs(self) -> str:
        data = data_section(self.config, AnnotatedConfig)
        return f"windows of {data.max_length} tokens"

    def answer(
        self,
        question: str,
        text: str,
        *,
        max_answer_length: int = 30,
        no_answer: float | None = None,
    ) -> Answer:
        """Returns the most probable answer; arguments as for :meth:`answers`."""
        [found] = self.answers(
            [(question, text)],
            max_answer_length=max_answer_length,
            no_answer=no_answer,
        )
        return found[0]

    def answers(
        self,
        questions: Sequence[tuple[str, str]],
        *,
        num_answers: int = 1,
        max_answer_length: int = 30,
        no_answer: float | None = None,
        report: Callable[[int], object] = lambda _: None,
    ) -> list[list[Answer]]:
        """Returns the best answers to each question, the most probable first.

        An answer is a span of the text. Its score is the sum of the logits of its first and its
        last token, in the window of a long text where it is highest.

        Args:
          questions: Questions with their texts.
          num_answers: Number of answers to each question; a short text may have fewer.
          max_answer_length: Maximum number of tokens of an answer.
          no_answer: If given, a text need not have an answer, as in SQuAD 2: the first one is "" if
            its score exceeds the best span's by more than this. Its score is the lowest of [CLS] in
            all windows.
          report: Called with the number of windows after each batch.

        Raises:
          UserError: A question leaves no space for a text, or an argument is out of range.
        """
        numbers = {"num_answers": num_answers, "max_answer_length": max_answer_length}
        for name, value in numbers.items():
            if value < 1:
                raise UserError(f"{name} must be at least 1: got {value}")

        windows = []
        for number, (question, text) in enumerate(questions, start=1):
            own = self._windows(question, text, place=f"questions:{number}")
            windows.append(own)

        all_windows = [window for own in windows for window in own]
        logits = self._logits(all_windows, report)
        most = max(num_answers, _NUM_CANDIDATES)
        results = []
        for (_, text), own in zip(questions, windows, strict=True):
            scored = [(window, next(logits)) for window in own]
            candidates = _candidates(scored, max_answer_length)
            null = min(_null_score(own_logits) for _, own_logits in scored)
            best = _rank(text, candidates, null=null, no_answer=no_answer, most=most)
            results.append(best[:num_answers])
        return results

    def check(self, question: str, text: str, place: str) -> None:
        """Refuses a question that leaves no space for a text, and texts that are no text."""
        self._windows(question, text, place)

    def _windows(self, question: str, text: str, place: str) -> list[Window]:
        check_text(question, place)
        check_text(text, place)

        data = data_section(self.config, AnnotatedConfig)
        with prefix_errors(place):
            return make_windows(
                self.tokenizer,
                question,
                text,
                max_length=data.max_length,
                stride=data.stride,
            )

    def _logits(
        self,
        windows: Sequence[Window],
        report: Callable[[int], object],
    ) -> Iterator[Float[np.ndarray, "T 2"]]:
        """Yields the logits of each window."""
        model: Any = self.config.model
        texts = []
        for window in windows:
            text = EncodedText.of(window.tokens, window.types, model.num_token_types)
            texts.append(text)

        yield from encoder_outputs(
            functools.partial(method_outputs, QUESTION_ANSWERING, "span_logits"),
            model,
            self.params,
            texts,
            batch_size=_BATCH_SIZE,
            report=report,
        )


def _null_score(logits: Float[np.ndarray, "T 2"]) -> float:
    """Returns the score of [CLS], which stands for no answer."""
    return float(logits[0].sum())


def _candidates(
    scored: Sequence[tuple[Window, Float[np.ndarray, "T 2"]]],
    max_length: int,
) -> dict[Span, float]:
    """Returns the best spans of each window with their scores; of equal spans, the higher one."""
    found: dict[Span, float] = {}
    for window, logits in scored:
        size = len(window.spans)
        own = logits[window.first : window.first + size]
        for score, first, last in best_spans(own, max_length, _NUM_CANDIDATES):
            start, _ = window.spans[first]
            _, end = window.spans[last]
            span = Span(start, end)
            found[span] = max(score, found.get(span, -np.inf))
    return found


def best_spans(
    logits: Float[np.ndarray, "T 2"],
    max_length: int,
    count: int,
) -> list[tuple[float, int, int]]:
    """Returns score, first and last token of the best spans of at most ``max_length`` tokens."""
    size = len(logits)
    if not size:
        return []

    # scores[i, k] is the score of the span from token i to token i + k.
    width = min(max_length, size)
    padding = np.full(width - 1, -np.inf, logits.dtype)
    ends = np.concatenate([logits[:, 1], padding])
    scores = logits[:, :1] + np.lib.stride_tricks.sliding_window_view(ends, width)

    order = np.argsort(-scores, axis=None, kind="stable")[:count]
    result = []
    for index in order.tolist():
        first, extra = divmod(index, width)
        if np.isfinite(scores[first, extra]):
            result.append((float(scores[first, extra]), first, first + extra))
    return result


def _rank(
    text: str,
    candidates: dict[Span, float],
    null: float,
    no_answer: float | None,
    most: int,
) -> list[Answer]:
    """Returns answers, the best first, with their probabilities."""
    ordered = sorted(candidates.items(), key=lambda item: -item[1])[:most]
    if no_answer is not None or not ordered:
        best = -np.inf
        if ordered:
            _, best = ordered[0]
        is_best = null - best > (no_answer or 0.0)

        # By its score, except for the first place.
        place = 0
        if not is_best:
            others = [score for _, score in ordered[1:]]
            place = 1 + sum(score > null for score in others)
        ordered.insert(place, (Span(0, 0), null))

    scores = np.array([score for _, score in ordered])
    odds = np.exp(scores - scores.max())
    probabilities = odds / odds.sum()

    answers = []
    for (span, score), probability in zip(ordered, probabilities, strict=True):
        answer = Answer(
            text[span.start : span.end],
            start=span.start,
            end=span.end,
            score=score,
            probability=float(probability),
        )
        answers.append(answer)
    return answers
