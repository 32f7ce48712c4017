"""Trains encoders of pictures and texts on pairs."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int32, PyTree

from jaxformer.config import Config, data_section
from jaxformer.data.encoded_text import pad_rows
from jaxformer.data.image_texts import ImageTextConfig
from jaxformer.data.images import Augmentation
from jaxformer.data.tokenizer import Vocabulary
from jaxformer.errors import UserError
from jaxformer.inference.text_inputs import encode_texts
from jaxformer.kinds.image_text import IMAGE_TEXT
from jaxformer.models.architecture import Architecture
from jaxformer.models.dual_encoder import DualEncoder, DualEncoderArchitecture, Embeddings
from jaxformer.runs import processes
from jaxformer.tasks.image_text.image_text_matcher import ImageTextMatcher
from jaxformer.tasks.image_text.picture_text_task import PictureTextTask
from jaxformer.tasks.images.image_augmentation import change_pictures
from jaxformer.tasks.token_task import NetworkLoss
from jaxformer.training.arrays import REAL
from jaxformer.training.flops import layers_flops
from jaxformer.training.losses import contrastive_sums
from jaxformer.training.task import CheckStop, Randomness, Sums

_LARGEST_LOG_SCALE = math.log(100)  # of the cosines


@dataclasses.dataclass(frozen=True)
class ImageTextLoss(NetworkLoss):
    """Sums the contrastive loss over pairs, whose pictures training changes at random.

    Each picture is compared with all texts of the global batch, and each text with all pictures.
    """

    model: DualEncoderArchitecture
    augmentation: Augmentation = dataclasses.field(default_factory=Augmentation)

    @classmethod
    def of(cls, config: Config) -> "ImageTextLoss":
        training = config.training
        if training.gradient_accumulation > 1:
            raise UserError(
                "training.gradient_accumulation must be 1 for pictures and texts, since each is "
                f"compared with the whole batch: got {training.gradient_accumulation}"
            )

        augmentation = data_section(config, ImageTextConfig)
        return dataclasses.replace(super().of(config), augmentation=augmentation)

    def __call__(
        self,
        params: PyTree,
        batch: PyTree,
        randomness: Randomness | None,
    ) -> Sums:
        images = self.model.scale_pixels(batch["images"])
        if randomness is not None:
            images = change_pictures(images, randomness, self.augmentation)

        def forward(module: DualEncoder, dropout: dict[str, Any]) -> tuple[Embeddings, Array]:
            return module.embeddings(images, batch["tokens"], **dropout), module.log_scale

        embeddings, log_scale = self.apply(params, randomness, forward)
        return contrastive_sums(
            embeddings.images,
            embeddings.texts,
            jnp.exp(limit_log_scale(log_scale)),
            real=batch[REAL],
        )


@jax.custom_vjp
def limit_log_scale(log_scale: Float[Array, ""]) -> Float[Array, ""]:
    """Returns the smaller of log_scale and log 100 (Radford et al. 2021, section 2.5).

    Beyond the limit, only a gradient whose step makes it smaller passes.
    """
    return jnp.minimum(log_scale, _LARGEST_LOG_SCALE)


def _forward(log_scale: Array) -> tuple[Array, Array]:
    return limit_log_scale(log_scale), log_scale


def _backward(log_scale: Array, gradient: Array) -> tuple[Array]:
    is_within = log_scale < _LARGEST_LOG_SCALE
    return (jnp.where(is_within, gradient, jnp.maximum(gradient, 0)),)


limit_log_scale.defvjp(_forward, _backward)


class ImageTextTraining(PictureTextTask):
    """Trains a :class:`~jaxformer.CLIP`; validates with the loss and with retrieval.

    Retrieval is over the whole validation split: the fraction of the pictures whose most similar
    text is their own, and of the different texts whose most similar picture has this text.
    """

    kind = IMAGE_TEXT
    loss_class = ImageTextLoss
    log_formats = {  # noqa: RUF012
        "accuracy": "",  # in its batch
        "image_to_text": "image to text R@1 {:.4f}",
        "text_to_image": "text to image R@1 {:.4f}",
    }

    @classmethod
    def encode(
        cls,
        texts: Sequence[str],
        tokenizer: Vocabulary,
        model: Architecture,
    ) -> Int32[np.ndarray, "N T"]:
        encoded = encode_texts(texts, tokenizer, model)
        longest = max(len(text.tokens) for text in encoded)
        return pad_rows(encoded, (len(encoded), longest)).tokens

    def flops(self, batch: PyTree) -> int:
        rows, length = batch["tokens"].shape
        model = self.config.model
        assert isinstance(model, DualEncoderArchitecture), "the kind has no other"
        pictures = layers_flops(model.vision_sizes(), rows, model.num_tokens)
        return pictures + layers_flops(model, rows, length, causal=model.reads_causally)

    def evaluate(
        self,
        params: PyTree,
        mesh: Mesh,
        check_stop: CheckStop,
    ) -> dict[str, float]:
        values = super().evaluate(params, mesh, check_stop)

        # Each process embeds all pairs, on one of its devices.
        if mesh.size > 1:
            params = processes.on_this_host(params)
        matcher = ImageTextMatcher(self.config, params, self.tokenizer)
        images, texts = self.valid.pairs
        check_stop()
        return values | retrieval(matcher, images, texts)


def retrieval(
    matcher: ImageTextMatcher,
    images: np.ndarray,
    texts: Sequence[str],
) -> dict[str, float]:
    """Returns the recall at 1 of pairs: of the texts of pictures, and of the pictures of texts."""
    candidates = [*dict.fromkeys(texts)]
    numbers = {text: number for number, text in enumerate(candidates)}
    own = np.array([numbers[text] for text in texts])
    cosines = matcher.similarity(images, candidates)  # [pictures, different texts]

    best_text = cosines.argmax(axis=1)
    best_image = cosines.argmax(axis=0)
    return {
        "image_to_text": float(np.mean(best_text == own)),
        "text_to_image": float(np.mean(own[best_image] == np.arange(len(candidates)))),
    }
