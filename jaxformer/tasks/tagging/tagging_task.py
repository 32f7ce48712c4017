"""Trains BERT to tag words, as on CoNLL 2003."""

import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import PyTree

from jaxformer.config import Config
from jaxformer.data.encoded_text import AnnotatedText, EncodedText
from jaxformer.data.huggingface_tokenizer import HuggingFaceTokenizer
from jaxformer.data.tagged import TaggedSentence, read_tagged
from jaxformer.errors import UserError, prefix_errors
from jaxformer.evaluation.entity_scores import entity_scores, names_entities
from jaxformer.kinds.annotated_texts import TAGGING
from jaxformer.tasks.annotated_task import NO_CLASS, AnnotatedClassLoss, AnnotatedTask
from jaxformer.tasks.tagging.tagger import Tagger, first_tokens


class TagLoss(AnnotatedClassLoss):
    """The loss over the first tokens of all words."""

    method = "tag_logits"


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
    def read_file(path: pathlib.Path) -> Iterable[TaggedSentence]:
        return read_tagged(path)

    @staticmethod
    def labels(examples: Sequence[TaggedSentence]) -> set[str]:
        return {tag for sentence in examples for tag in sentence.tags}

    @classmethod
    def check_labels(cls, model: Any, tokenizer: HuggingFaceTokenizer, labels: set[str]) -> None:
        cls._check_count("num_tags", model.num_tags, tokenizer, labels)

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

        target = np.full(len(aligned.ids), NO_CLASS, np.int32)
        for word, token in first_tokens(aligned).items():
            target[token] = tokenizer.symbols.index(example.tags[word])
        text = EncodedText.of(aligned.ids, aligned.types, model.num_token_types)
        return [AnnotatedText(text, target, number)]

    @staticmethod
    def sides(example: TaggedSentence) -> list[tuple[str, str]]:
        return [("words", " ".join(example.words)), ("tags", " ".join(example.tags))]

    @staticmethod
    def empty_targets(num_rows: int, length: int) -> np.ndarray:
        return np.full((num_rows, length), NO_CLASS, np.int32)

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
        sentences = [sentence.words for sentence in examples]
        found = tagger.tag_words(sentences, report=report)
        found_tags = []
        for words in found:
            tags = [word.tag for word in words]
            found_tags.append(tags)

        expected_tags = [sentence.tags for sentence in examples]
        scores = entity_scores(found_tags, expected_tags)
        return {
            "precision": scores.precision,
            "recall": scores.recall,
            "f1": scores.f1,
        }
