"""Trains BERT on multiple choice, as on SWAG."""

import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import PyTree

from jaxformer.config import Config
from jaxformer.data.annotated import AnnotatedConfig
from jaxformer.data.choices import Choices, read_choices
from jaxformer.data.encoded_text import AnnotatedText, pad_rows
from jaxformer.data.huggingface_tokenizer import HuggingFaceTokenizer
from jaxformer.errors import UserError
from jaxformer.inference.text_inputs import encode_text
from jaxformer.kinds.annotated_texts import MULTIPLE_CHOICE
from jaxformer.tasks.annotated_task import NO_CLASS, AnnotatedClassLoss, AnnotatedTask


class ChoiceLoss(AnnotatedClassLoss):
    """The loss over examples."""

    method = "choice_logits"


class MultipleChoice(AnnotatedTask):
    """Trains BERT on contexts with choices; validates with loss and accuracy.

    A row of a batch has all choices of an example: tokens and types are [B, C, T].
    """

    kind = MULTIPLE_CHOICE
    loss_class = ChoiceLoss
    noun = "examples"

    @staticmethod
    def check_model(model: Any) -> None:
        if "choice" not in model.heads:
            raise UserError(
                f"data.corpus=choices needs choice among model.heads: got {model.heads!r}; give "
                '--config.model.heads="pooler choice" --config.model.num_classes=0'
            )

    @staticmethod
    def read_file(path: pathlib.Path) -> Iterable[Choices]:
        return read_choices(path)

    @staticmethod
    def check_examples(data: AnnotatedConfig, examples: Sequence[Choices]) -> None:
        for example in examples:
            if example.label is None:
                raise UserError(f"{example.place}: expected a label, got none")
            if len(example.choices) != data.num_choices:
                raise UserError(
                    f"{example.place}: expected data.num_choices={data.num_choices} choices, got "
                    f"{len(example.choices)}"
                )

    @staticmethod
    def encode(
        config: Config,
        tokenizer: HuggingFaceTokenizer,
        example: Choices,
        number: int,
    ) -> list[AnnotatedText]:
        texts = []
        for choice in example.choices:
            pair = (example.context, choice)
            texts.append(
                encode_text(pair, tokenizer, config.model, example.place, is_limited=False)
            )

        longest = max(len(text.tokens) for text in texts)
        padded = pad_rows(texts, (len(texts), longest))  # [C, T]
        return [AnnotatedText(padded, example.label, number)]

    @staticmethod
    def empty_targets(num_rows: int, length: int) -> np.ndarray:
        return np.full(num_rows, NO_CLASS, np.int32)

    @staticmethod
    def sides(example: Choices) -> list[tuple[str, str]]:
        choices = [("choice", choice) for choice in example.choices]
        return [("context", example.context), *choices, ("label", str(example.label))]

    @staticmethod
    def _log_formats(scored: int) -> dict[str, str]:
        return {"accuracy": "accuracy {:.4f}"}

    def score(
        self,
        params: PyTree,
        examples: Sequence[Choices],
        report: Callable[[int], object],
    ) -> dict[str, float]:
        """Returns nothing: the loss counts right choices."""
        return {}
