"""Trains BERT to find the answers to questions, as on SQuAD."""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxformer.config import Config, data_section
from jaxformer.data.annotated import AnnotatedConfig
from jaxformer.data.encoded_text import AnnotatedBatch, AnnotatedText, EncodedText
from jaxformer.data.huggingface_tokenizer import HuggingFaceTokenizer
from jaxformer.data.questions import Question, make_windows, read_questions
from jaxformer.data.tokenizer import PAD
from jaxformer.errors import UserError, prefix_errors
from jaxformer.evaluation.answer_scores import answer_scores
from jaxformer.kinds.annotated_texts import QUESTION_ANSWERING
from jaxformer.nn.precision import at_least_float32
from jaxformer.tasks.annotated_task import AnnotatedTask
from jaxformer.tasks.question_answering.reader import Reader
from jaxformer.tasks.token_task import NetworkLoss
from jaxformer.training.task import Randomness, Sums


class SpanLoss(NetworkLoss):
    """Sums the mean of two losses: of the first and of the last token of each answer.

    Departs from transformers: padding has no probability, so that the loss of a text is the same in
    any batch.
    """

    smooths_labels = True

    def __call__(
        self,
        params: PyTree,
        batch: AnnotatedBatch,
        randomness: Randomness | None,
    ) -> Sums:
        def forward(module: Any, dropout: dict[str, Any]) -> Float[Array, "B T 2"]:
            return module.span_logits(batch.tokens, token_types=batch.types, **dropout)

        logits = self.apply(params, randomness, forward)
        logits = logits.astype(at_least_float32(logits))
        is_token = batch.tokens != PAD  # [B, T]

        # Rows without a text keep finite logits.
        is_real = is_token.any(axis=1)  # [B]
        is_possible = (is_token | ~is_real[:, None])[..., None]  # [B, T, 1]
        log_probs = jax.nn.log_softmax(jnp.where(is_possible, logits, -jnp.inf), axis=1)

        places = batch.targets[:, None]  # [B, 1, 2]
        nll = -jnp.take_along_axis(log_probs, places, axis=1)[:, 0]  # [B, 2]
        num_possible = is_possible.sum(axis=1)  # [B, 1]
        uniform = -jnp.where(is_possible, log_probs, 0).sum(axis=1) / num_possible
        smoothing = self.label_smoothing
        loss = ((1 - smoothing) * nll + smoothing * uniform).mean(axis=1)  # [B]

        return {
            "loss": jnp.where(is_real, loss, 0).sum(),
            "count": is_real.sum(dtype=jnp.int32),
            "tokens": is_token.sum(dtype=jnp.int32),
        }


class QuestionAnswering(AnnotatedTask):
    """Trains BERT on questions; validates with the loss, exact match and F1."""

    kind = QUESTION_ANSWERING
    loss_class = SpanLoss
    noun = "questions"

    @staticmethod
    def check_model(model: Any) -> None:
        if "spans" not in model.heads:
            raise UserError(
                f"data.corpus=squad needs spans among model.heads: got {model.heads!r}; give "
                "--config.model.heads=spans --config.model.num_classes=0"
            )

    @staticmethod
    def read_file(path: pathlib.Path) -> list[Question]:
        questions = read_questions(path)
        for question in questions:
            if question.answers is None:
                raise UserError(f"{path}: question {question.id}: expected answers, got none")
        return questions

    @staticmethod
    def encode(
        config: Config,
        tokenizer: HuggingFaceTokenizer,
        example: Question,
        number: int,
    ) -> list[AnnotatedText]:
        data = data_section(config, AnnotatedConfig)
        model: Any = config.model
        with prefix_errors(f"question {example.id}"):
            windows = make_windows(
                tokenizer,
                example.question,
                example.text,
                max_length=data.max_length,
                stride=data.stride,
            )

        # As in transformers, of several answers the first is learned.
        answer = example.answers[0] if example.answers else None
        texts = []
        for window in windows:
            text = EncodedText.of(window.tokens, window.types, model.num_token_types)
            texts.append(AnnotatedText(text, window.places(answer), number))
        return texts

    @staticmethod
    def empty_targets(num_rows: int, length: int) -> np.ndarray:
        return np.zeros((num_rows, 2), np.int32)

    @staticmethod
    def sides(example: Question) -> list[tuple[str, str]]:
        answer = next(iter(example.answer_texts()), "")
        return [("question", example.question), ("text", example.text), ("answer", answer)]

    @staticmethod
    def _log_formats(scored: int) -> dict[str, str]:
        return {"exact_match": "exact match {:.2f}", "f1": "F1 {:.2f}"}

    def score(
        self,
        params: PyTree,
        examples: Sequence[Question],
        report: Callable[[int], object],
    ) -> dict[str, float]:
        reader = Reader(self.config, params, self.tokenizer)

        # The answers of SQuAD 2 include "none".
        can_lack = any(not question.answers for question in self._valid.examples)
        found = reader.answers(
            [(question.question, question.text) for question in examples],
            no_answer=0.0 if can_lack else None,
            report=report,
        )
        scores = answer_scores(
            [answers[0].text for answers in found],
            [question.answer_texts() for question in examples],
        )
        return scores._asdict()
