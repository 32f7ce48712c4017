"""Trains models that write texts about pictures."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int32, PyTree

from jaxformer.config import Config, data_section, model_section
from jaxformer.data.captions import CaptionsConfig
from jaxformer.data.images import Augmentation
from jaxformer.data.tokenizer import BOS, EOS, PAD, Vocabulary
from jaxformer.errors import UserError
from jaxformer.evaluation.bleu_report import corpus_bleu
from jaxformer.kinds.captioning import CAPTIONING
from jaxformer.models.architecture import Architecture
from jaxformer.models.captioning import (
    VisionEncoderDecoder,
    VisionEncoderDecoderConfig,
)
from jaxformer.runs import processes
from jaxformer.tasks.captions.captioner import Captioner
from jaxformer.tasks.image_text.picture_text_task import PictureTextTask
from jaxformer.tasks.images.image_augmentation import change_pictures
from jaxformer.tasks.token_task import Output, TokenLoss
from jaxformer.tasks.translation import percentage_equal
from jaxformer.training.arrays import REAL
from jaxformer.training.flops import decoder_flops, layers_flops
from jaxformer.training.task import CheckStop, Randomness, Sums

_BLEU_WORDS = 4  # BLEU counts sequences of so many


@dataclasses.dataclass(frozen=True)
class CaptionLoss(TokenLoss):
    """Sums the loss over the tokens of texts, whose pictures training changes at random."""

    augmentation: Augmentation = dataclasses.field(default_factory=Augmentation)

    @classmethod
    def of(cls, config: Config) -> "CaptionLoss":
        augmentation = data_section(config, CaptionsConfig)
        return dataclasses.replace(super().of(config), augmentation=augmentation)

    def __call__(
        self,
        params: PyTree,
        batch: PyTree,
        randomness: Randomness | None,
    ) -> Sums:
        model: Any = self.model
        images = model.scale_pixels(batch["images"])
        if randomness is not None:
            images = change_pictures(images, randomness, self.augmentation)

        targets = batch["tokens"]
        inputs = jnp.pad(targets[:, :-1], ((0, 0), (1, 0)), constant_values=BOS)
        real = (targets != PAD) & batch[REAL][:, None]

        def forward(module: VisionEncoderDecoder, dropout: dict[str, Any]) -> Output:
            features = module.target_features(images, tgt_in=inputs, **dropout)
            return features, module.output_projection()

        output = self.apply(params, randomness, forward)
        return self.sums(output, targets, real)


class CaptionTraining(PictureTextTask):
    """Trains a :class:`~jaxformer.VisionEncoderDecoder`; validates with its loss and its texts.

    The first ``training.eval_sentences`` pictures of the validation split are described.
    """

    kind = CAPTIONING
    loss_class = CaptionLoss
    log_formats = {  # noqa: RUF012
        "exact_match": "exact {:.1f}%",
        "bleu": "sacreBLEU {:.2f} (cased, 13a tokenizer)",
    }

    @classmethod
    def encode(
        cls,
        texts: Sequence[str],
        tokenizer: Vocabulary,
        model: Architecture,
    ) -> Int32[np.ndarray, "N T"]:
        encoded = tokenizer.encode_target_batch(texts)
        longest = max(map(len, encoded)) + 1  # with the end
        if longest > model.max_length:
            number = max(range(len(encoded)), key=lambda index: len(encoded[index]))
            raise UserError(
                f"expected texts of at most {model.max_length - 1} tokens (model.max_length), got "
                f"{longest - 1}: {texts[number]!r:.80}"
            )

        tokens = np.full((len(encoded), longest), PAD, np.int32)
        for row, ids in zip(tokens, encoded, strict=True):
            row[: len(ids) + 1] = [*ids, EOS]
        return tokens

    def flops(self, batch: PyTree) -> int:
        rows, length = batch["tokens"].shape
        model = model_section(self.config, VisionEncoderDecoderConfig)
        encoder = model.encoder_section()
        pictures = layers_flops(encoder, rows, encoder.num_tokens)
        return pictures + decoder_flops(model, rows, length, memory=encoder.num_tokens)

    def evaluate(
        self,
        params: PyTree,
        mesh: Mesh,
        check_stop: CheckStop,
    ) -> dict[str, float]:
        values = super().evaluate(params, mesh, check_stop)
        count = self.config.training.eval_sentences
        if not count:
            return values

        # Each process describes all pictures, on one of its devices.
        if mesh.size > 1:
            params = processes.on_this_host(params)
        captioner = Captioner(self.config, params, self.tokenizer)
        check_stop()
        images, references = self.valid.pairs
        texts = captioner.caption(images[:count])
        return values | score_captions(texts, references[:count])


def score_captions(texts: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Returns the percentage of exact matches, and BLEU unless all references are too short."""
    scores = {"exact_match": percentage_equal(texts, references)}
    longest = max(len(reference.split()) for reference in references)
    if longest >= _BLEU_WORDS:
        scores["bleu"] = corpus_bleu(texts, references, target_language="en")
    return scores
