"""Trains an encoder on labels or on masked tokens."""

import dataclasses
from collections.abc import Collection
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxformer.config import Config, data_section
from jaxformer.data.batch import TokenIds
from jaxformer.data.classes import check_variety, describe_classes
from jaxformer.data.corpus import Corpus
from jaxformer.data.findings import list_first
from jaxformer.data.held_out import open_splits
from jaxformer.data.labeled import (
    FIRST_LABEL,
    LabeledBatch,
    LabeledConfig,
    LabeledCorpus,
    make_labeled_batch,
    pad_texts,
)
from jaxformer.data.tokenizer import BOS, PAD, UNK
from jaxformer.errors import UserError
from jaxformer.kinds.classification import CLASSIFICATION, MASKED_LANGUAGE_MODELING
from jaxformer.models.bert import BertConfig
from jaxformer.models.encoder import Encoder
from jaxformer.runs.workdir import Workdir
from jaxformer.tasks.corpus_task import CorpusTask
from jaxformer.tasks.dataset import open_dataset
from jaxformer.tasks.token_task import Output, Queries, TokenLoss
from jaxformer.training.flops import language_model_flops, layers_flops
from jaxformer.training.losses import class_sums
from jaxformer.training.task import Loss, Randomness, Sums

# Ids of special tokens precede the tokens of texts.
_LEAST_TOKEN = UNK + 1
# Of the tokens to predict: fractions of those that a mask replaces, or a mask or another token.
_MASKED = 0.8
_MASKED_OR_RANDOM = 0.9


@dataclasses.dataclass(frozen=True)
class EncoderLoss(TokenLoss):
    """Base of the losses of an :class:`Encoder` on texts with masked tokens."""

    mask_rate: float = 0.0  # fraction of the tokens that are masked
    mask_token: int = BOS  # replaces masked tokens

    @classmethod
    def of(cls, config: Config) -> "EncoderLoss":
        data = data_section(config, LabeledConfig)
        return dataclasses.replace(super().of(config), mask_rate=data.mask_rate)

    def draw_mask(
        self,
        tokens: Int[Array, "B T"],
        key: Array,
        row_ids: Int[Array, " B"],
    ) -> tuple[Bool[Array, "B T"], Float[Array, "B T"], Float[Array, "B T"]]:
        """Returns the tokens to mask, and two uniform numbers for each token."""

        def draw_row(row_id: Array) -> Float[Array, "T 3"]:
            # Draws of a token do not depend on the number of tokens, padding included.
            row_key = jax.random.fold_in(key, row_id)
            return jax.random.uniform(row_key, (tokens.shape[1], 3))

        draws = jax.vmap(draw_row)(row_ids)  # [B, T, 3]
        chosen, first, second = jnp.moveaxis(draws, -1, 0)  # each [B, T]
        is_chosen = chosen < self.mask_rate
        is_text = tokens >= _LEAST_TOKEN
        return is_chosen & is_text, first, second


class ClassificationLoss(EncoderLoss):
    """Sums the label-smoothed loss over texts, and counts correct classes.

    In training, some tokens are masked, so that predictions do not depend on a few words.
    """

    def __call__(
        self,
        params: PyTree,
        batch: LabeledBatch,
        randomness: Randomness | None,
    ) -> Sums:
        tokens = batch.tokens
        if randomness is not None:
            # The seed is dropout's, but the stream of random numbers is another.
            key = jax.random.fold_in(randomness.key, 1)
            chosen, _, _ = self.draw_mask(tokens, key, randomness.row_ids)
            tokens = jnp.where(chosen, self.mask_token, tokens)

        def forward(module: Encoder, dropout: dict[str, Any]) -> Float[Array, "B C"]:
            return module(tokens, **dropout)

        logits = self.apply(params, randomness, forward)
        is_real = batch.classes >= 0
        sums = class_sums(logits, batch.classes, is_real, self.label_smoothing)

        is_token = batch.tokens != PAD
        return sums | {"tokens": is_token.sum(dtype=jnp.int32)}

    def attention_queries(self, batch: LabeledBatch) -> Queries:
        """Returns weights of the tokens with a sum of 1 for each text, which counts as much."""
        is_token = (batch.tokens != PAD).astype(jnp.float32)
        lengths = is_token.sum(axis=1, keepdims=True)
        return {("encoder", "self_attention"): is_token / jnp.maximum(lengths, 1)}


class MaskedLoss(EncoderLoss):
    """Sums the loss over masked tokens (Devlin et al. 2019).

    Of the tokens to predict, 80 % are replaced by a mask, 10 % by a random token, and 10 % are
    unchanged. In evaluation, the mask of a text depends only on the text.
    """

    def __call__(
        self,
        params: PyTree,
        batch: Int[Array, "B T"],
        randomness: Randomness | None,
    ) -> Sums:
        inputs, predicted = self.mask_tokens(batch, randomness)

        def forward(module: Encoder, dropout: dict[str, Any]) -> Output:
            features = module.features(inputs, **dropout)
            return module.transform(features), module.output_projection()

        output = self.apply(params, randomness, forward)
        sums = self.sums(output, batch, predicted)

        is_token = batch != PAD
        return sums | {"tokens": is_token.sum(dtype=jnp.int32)}

    def mask_tokens(
        self,
        tokens: Int[Array, "B T"],
        randomness: Randomness | None,
    ) -> tuple[Int[Array, "B T"], Bool[Array, "B T"]]:
        """Returns the texts with masks, and the mask of the tokens to predict."""
        # With generators other than Threefry, numbers depend on the batch.
        key = jax.random.key(0, impl="threefry2x32")
        row_ids = tokens.sum(axis=1)
        if randomness is not None:
            key, row_ids = randomness
        predicted, kind, token = self.draw_mask(tokens, key, row_ids)

        num_others = self.model.vocab_size - _LEAST_TOKEN
        other = _LEAST_TOKEN + (token * num_others).astype(tokens.dtype)

        # Of the tokens to predict, 80 % become a mask, 10 % another token.
        is_masked = kind < _MASKED
        is_changed = kind < _MASKED_OR_RANDOM
        random_or_own = jnp.where(is_changed, other, tokens)
        replaced = jnp.where(is_masked, self.mask_token, random_or_own)

        return jnp.where(predicted, replaced, tokens), predicted


EncoderTaskT = TypeVar("EncoderTaskT", bound="EncoderTask")


class EncoderTask(CorpusTask):
    """Base of the tasks that train an :class:`Encoder` on texts."""

    @classmethod
    def open_texts(
        cls: type[EncoderTaskT],
        config: Config,
        folder: Workdir,
        corpus: Corpus,
        labels: Collection[str] = (),
    ) -> EncoderTaskT:
        """Opens a corpus of texts with the ``labels``, if they have any."""
        dataset = open_dataset(config, folder, corpus, labels=labels, decodes=False)
        task = cls(config, dataset)

        if isinstance(config.model, BertConfig):
            [blank] = dataset.tokenizer.encode_batch([""])
            if not blank:
                raise UserError(
                    f"model.architecture={config.model.architecture} needs a tokenizer that begins "
                    "texts with [CLS]: give the workdir of an imported BERT as training.init_from "
                    "or data.tokenizer"
                )

        masks = data_section(config, LabeledConfig).mask_rate > 0
        if masks and dataset.tokenizer.mask_token is None:
            raise UserError(
                "data.mask_rate masks tokens, but this tokenizer has no mask: set data.mask_rate=0 "
                "or import the model again with its mask_token in tokenizer_config.json"
            )
        return task

    @property
    def loss(self) -> Loss:
        loss = cast(EncoderLoss, super().loss)
        mask = self._data.tokenizer.mask_token
        return loss if mask is None else dataclasses.replace(loss, mask_token=mask)

    def _efficiency(self) -> float:
        # The plan also counts the labels, which are not computed. A bucket has the same length for
        # both.
        plan = self._data.plan
        lengths = self._data.train.src_lengths
        if plan.ids is not None:
            lengths = lengths[plan.ids]

        tokens = int(lengths.sum())
        return plan.efficiency * 2 * tokens / plan.tokens


class Classification(EncoderTask):
    """Trains an :class:`Encoder` on texts with labels; validates with loss and accuracy."""

    kind = CLASSIFICATION
    loss_class = ClassificationLoss
    make_batch = staticmethod(make_labeled_batch)

    @classmethod
    def open(
        cls,
        config: Config,
        folder: Workdir,
        corpus: Corpus | None = None,
    ) -> "Classification":
        corpus = corpus or LabeledCorpus()
        labels = _read_labels(config, corpus)
        task = cls.open_texts(config, folder, corpus, labels)
        task._check_labels()
        return task

    def _check_labels(self) -> None:
        known = self._data.tokenizer.symbols
        for split, store in (
            (self._section.train, self._data.train),
            (self._section.valid, self._data.valid),
        ):
            unknown = np.flatnonzero(store.first_targets() == UNK)
            if len(unknown):
                number = int(store.numbers[unknown[0]])
                place = self._data.corpus.place(split, number, 1)
                raise UserError(
                    f"{place}: expected a label of the tokenizer, {', '.join(known)}, got another; "
                    "give --config.data.tokenizer=new, which keeps the embeddings of pieces that "
                    "both have"
                )

        model: Any = self.config.model
        if model.num_classes != len(known):
            raise UserError(
                f"model.num_classes must be {len(known)}, for the labels "
                f"{list_first(known[:9], len(known))}: got {model.num_classes}; give "
                f"--config.model.num_classes={len(known)}"
            )

    def summary(self) -> str:
        """Returns the summary of texts and batches, and notes on labels that a split lacks."""
        lines = [super().summary()]
        lines += self._describe_labels()
        return "\n".join(lines)

    def _describe_labels(self) -> list[str]:
        train = self._data.train.first_targets() - FIRST_LABEL
        valid = self._data.valid.first_targets() - FIRST_LABEL
        return describe_classes(self._data.tokenizer.symbols, train, valid)

    def _name_sides(self, pair: tuple[str, str]) -> list[tuple[str, str]]:
        text, label = pair
        return [("text", text), ("label", label)]

    def _log_formats(self) -> dict[str, str]:
        return {"accuracy": "accuracy {:.4f}"}

    def flops(self, batch: LabeledBatch) -> int:
        """Returns the operations of all matmuls, with padding, except the logits of classes."""
        rows, length = batch.tokens.shape
        return layers_flops(self.config.model, rows, length, causal=False)


class MaskedLanguageModeling(EncoderTask):
    """Trains an :class:`Encoder` on masked tokens; validates with loss and perplexity.

    A batch is an array of token ids, [B, T], padded with 0.
    """

    kind = MASKED_LANGUAGE_MODELING
    loss_class = MaskedLoss
    make_batch = staticmethod(pad_texts)

    @classmethod
    def open(
        cls,
        config: Config,
        folder: Workdir,
        corpus: Corpus | None = None,
    ) -> "MaskedLanguageModeling":
        return cls.open_texts(config, folder, corpus or LabeledCorpus(has_labels=False))

    def _name_sides(self, pair: tuple[str, str]) -> list[tuple[str, str]]:
        text, _ = pair
        return [("text", text)]

    def _decode_example(self, source: TokenIds, target: TokenIds) -> str:
        return self._data.tokenizer.decode(source)

    def _log_formats(self) -> dict[str, str]:
        return {}

    def flops(self, batch: Int[Array, "B T"]) -> int:
        """Returns the operations of all matmuls, with padding and the logits of all tokens."""
        rows, length = batch.shape
        return language_model_flops(self.config.model, rows, length, causal=False)


def _read_labels(config: Config, corpus: Corpus) -> set[str]:
    """Returns the labels of both splits; refuses labels that no model can learn."""
    data = data_section(config, LabeledConfig)
    splits = open_splits(data, corpus)
    in_train = [label for _, label in splits.pairs(data.train)]
    labels = set(in_train)
    if in_train:
        check_variety(data.train, classes=len(labels), examples=len(in_train))

    for _, label in splits.pairs(data.valid):
        labels.add(label)
    return labels
