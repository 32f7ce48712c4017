"""Trains BERT on labels of pairs of texts, as on MNLI or QQP."""

import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import PyTree

from jaxformer.config import Config
from jaxformer.data.classes import check_variety, describe_classes
from jaxformer.data.encoded_text import AnnotatedText
from jaxformer.data.huggingface_tokenizer import HuggingFaceTokenizer
from jaxformer.data.text_pairs import AnnotatedLine, read_labeled_pairs
from jaxformer.errors import UserError
from jaxformer.inference.text_inputs import encode_text
from jaxformer.kinds.annotated_texts import PAIR_CLASSIFICATION
from jaxformer.tasks.annotated_task import NO_CLASS, AnnotatedClassLoss, AnnotatedTask


class PairLoss(AnnotatedClassLoss):
    """The loss over pairs."""

    method = "__call__"


class PairClassification(AnnotatedTask):
    """Trains BERT on pairs of texts with labels; validates with loss and accuracy."""

    kind = PAIR_CLASSIFICATION
    loss_class = PairLoss
    noun = "pairs"

    @staticmethod
    def check_model(model: Any) -> None:
        if not model.num_classes:
            raise UserError("data.corpus=labeled_pairs needs model.num_classes above 0")

    @staticmethod
    def read_file(path: pathlib.Path) -> Iterable[AnnotatedLine]:
        return read_labeled_pairs(path)

    @staticmethod
    def labels(examples: Sequence[AnnotatedLine]) -> set[str]:
        return {line.label for line in examples}

    @classmethod
    def check_labels(cls, model: Any, tokenizer: HuggingFaceTokenizer, labels: set[str]) -> None:
        cls._check_count("num_classes", model.num_classes, tokenizer, labels)

    @staticmethod
    def encode(
        config: Config,
        tokenizer: HuggingFaceTokenizer,
        example: AnnotatedLine,
        number: int,
    ) -> list[AnnotatedText]:
        text = encode_text(example.text, tokenizer, config.model, example.place, is_limited=False)
        return [AnnotatedText(text, tokenizer.symbols.index(example.label), number)]

    @staticmethod
    def empty_targets(num_rows: int, length: int) -> np.ndarray:
        return np.full(num_rows, NO_CLASS, np.int32)

    @staticmethod
    def sides(example: AnnotatedLine) -> list[tuple[str, str]]:
        texts = [("text", text) for text in example.texts()]
        return [*texts, ("label", example.label)]

    @staticmethod
    def _log_formats(scored: int) -> dict[str, str]:
        return {"accuracy": "accuracy {:.4f}"}

    def summary(self) -> str:
        """Returns the summary of pairs and batches, and notes on labels that a split lacks."""
        train = np.array([text.target for text in self._train.texts])
        valid = np.array([text.target for text in self._valid.texts])
        check_variety(self._train.name, classes=len(np.unique(train)), examples=len(train))
        return "\n".join(
            [super().summary(), *describe_classes(self.tokenizer.symbols, train, valid)]
        )

    def score(
        self,
        params: PyTree,
        examples: Sequence[AnnotatedLine],
        report: Callable[[int], object],
    ) -> dict[str, float]:
        """Returns nothing: the loss counts correct classes."""
        return {}
