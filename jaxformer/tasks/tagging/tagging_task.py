"""Trains BERT to tag words, as on CoNLL 2003."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxformer.config import Config
from jaxformer.data.batch import Shape
from jaxformer.data.encoded_text import AnnotatedBatch, AnnotatedText, EncodedText, pad_rows
from jaxformer.data.file_corpora import find_files
from jaxformer.data.huggingface_tokenizer import HuggingFaceTokenizer
from jaxformer.data.tagged import TaggedSentence, read_tagged
from jaxformer.data.tokenizer import PAD
from jaxformer.errors import UserError, prefix_errors
from jaxformer.evaluation.entity_scores import entity_scores, names_entities
from jaxformer.kinds.annotated_texts import TAGGING
from jaxformer.tasks.annotated_task import AnnotatedTask
from jaxformer.tasks.tagging.tagger import Tagger, first_tokens
from jaxformer.tasks.token_task import NetworkLoss
from jaxformer.training.losses import class_sums
from jaxformer.training.task import Randomness, Sums

_NO_TAG = -1  # of special tokens, padding, and tokens that continue a word


class TagLoss(NetworkLoss):
    """Sums the label-smoothed loss over the first tokens of all words."""

    def __call__(
        self,
        params: PyTree,
        batch: AnnotatedBatch,
        randomness: Randomness | None,
    ) -> Sums:
        def forward(module: Any, dropout: dict[str, Any]) -> Float[Array, "B T N"]:
            return module.tag_logits(batch.tokens, token_types=batch.types, **dropout)

        logits = self.apply(params, randomness, forward)
        tags = batch.targets.reshape(-1)
        sums = class_sums(
            logits.reshape(len(tags), -1),
            tags,
            tags != _NO_TAG,
            smoothing=self.label_smoothing,
        )
        is_token = batch.tokens != PAD
        return sums | {"tokens": is_token.sum(dtype="int32")}


class Tagging(AnnotatedTask):
    """Trains BERT on tagged words; validates with the loss, and with the F1 of entities."""

    kind = TAGGING
    loss_class = TagLoss
    noun = "sentences"

    @staticmethod
    def check_model(model: Any) -> None:
        if not model.num_tags:
            raise UserError("data.corpus=tagged needs model.num_tags above 0, the number of tags")

    @staticmethod
    def read(name: str) -> list[TaggedSentence]:
        sentences: list[TaggedSentence] = []
        for path in find_files(name):
            sentences += read_tagged(path)
        return sentences

    @staticmethod
    def labels(examples: Sequence[TaggedSentence]) -> set[str]:
        return {tag for sentence in examples for tag in sentence.tags}

    @classmethod
    def check_labels(cls, model: Any, tokenizer: HuggingFaceTokenizer, labels: set[str]) -> None:
        cls._check_known(tokenizer, labels)
        expected = len(tokenizer.symbols)
        if model.num_tags != expected:
            raise UserError(
                f"model.num_tags must be {expected}, for the tags {', '.join(tokenizer.symbols)}: "
                f"got {model.num_tags}; give --config.model.num_tags={expected}"
            )

    @staticmethod
    def encode(
        config: Config,
        tokenizer: HuggingFaceTokenizer,
        example: TaggedSentence,
        number: int,
    ) -> list[AnnotatedText]:
        model: Any = config.model
        with prefix_errors(example.place):
            aligned = tokenizer.align_words(example.words)

        target = np.full(len(aligned.ids), _NO_TAG, np.int32)
        for word, token in first_tokens(aligned).items():
            target[token] = tokenizer.symbols.index(example.tags[word])
        text = EncodedText.of(aligned.ids, aligned.types, model.num_token_types)
        return [AnnotatedText(text, target, number)]

    @staticmethod
    def sides(example: TaggedSentence) -> list[tuple[str, str]]:
        return [("words", " ".join(example.words)), ("tags", " ".join(example.tags))]

    @classmethod
    def make_batch(cls, rows: Sequence[Sequence[AnnotatedText]], shape: Shape) -> AnnotatedBatch:
        num_rows, length, _ = shape
        padded = pad_rows([row.text for [row] in rows], (num_rows, length))

        targets = np.full((num_rows, length), _NO_TAG, np.int32)
        for number, [row] in enumerate(rows):
            targets[number, : len(row.target)] = row.target
        return AnnotatedBatch(padded.tokens, padded.types, targets)

    @staticmethod
    def _log_formats(scored: int) -> dict[str, str]:
        return {"accuracy": "accuracy {:.4f}", "f1": "F1 {:.2f}"}

    def score(
        self,
        params: PyTree,
        examples: Sequence[TaggedSentence],
        report: Callable[[int], object],
    ) -> dict[str, float]:
        """Returns the F1 of entities; nothing for other tags, whose accuracy the loss counts."""
        if not names_entities(self.tokenizer.symbols):
            return {}

        tagger = Tagger(self.config, params, self.tokenizer)
        found = tagger.tag_words([sentence.words for sentence in examples], report=report)
        scores = entity_scores(
            [[word.tag for word in words] for words in found],
            [sentence.tags for sentence in examples],
        )
        return {"precision": scores.precision, "recall": scores.recall, "f1": scores.f1}
