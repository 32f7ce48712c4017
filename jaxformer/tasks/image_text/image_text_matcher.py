"""Embeddings of pictures and texts with a trained model, and their similarity."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Int, PyTree, UInt8

from jaxformer.errors import UserError
from jaxformer.inference.encoder_outputs import encoder_outputs
from jaxformer.inference.text_inputs import encode_texts
from jaxformer.inference.weights import EncoderPredictor
from jaxformer.kinds.image_text import IMAGE_TEXT
from jaxformer.layout import global_mesh
from jaxformer.models.dual_encoder import DualEncoderArchitecture, unit_vectors

_BATCH_SIZE = 64
LABEL = "{}"  # stands for a label in a template


class ImageTextMatcher(EncoderPredictor):
    """Compares pictures with texts, with the model of a workdir.

    A picture is classified without training by the text that is most similar to it: "zero-shot".

    >>> matcher = ImageTextMatcher.load("runs/clip")  # doctest: +SKIP
    >>> matcher.probabilities(images, ["cat", "dog"], "a photo of a {}")  # doctest: +SKIP

    Attributes:
      config: The config of the run.
      params: Parameters.
      tokenizer: The tokenizer that the model was trained with.
      weights: Description of the checkpoint, such as "step 2000".
    """

    kinds = (IMAGE_TEXT,)

    @property
    def model(self) -> DualEncoderArchitecture:
        model: Any = self.config.model
        return model

    def _describe_outputs(self) -> str:
        return f"embeddings of {self.model.embedding_dim}"

    def image_embeddings(self, images: UInt8[np.ndarray, "N Y X C"]) -> Float[np.ndarray, "N E"]:
        """Returns an embedding of length 1 for each picture.

        Raises:
          UserError: Pictures are not uint8, or of another size than in training.
        """
        return self._embed_images(self.model.as_pictures(images))

    @global_mesh(None)
    def _embed_images(self, images: np.ndarray) -> np.ndarray:
        # All batches have one shape, so that there is one program.
        found = []
        for start in range(0, len(images), _BATCH_SIZE):
            rows = images[start : start + _BATCH_SIZE]
            missing = _BATCH_SIZE - len(rows)
            padded = np.pad(rows, ((0, missing), (0, 0), (0, 0), (0, 0)))
            embedded = np.asarray(_image_vectors(self.model, self.params, padded))
            found.append(embedded[: len(rows)])
        return np.concatenate(found)

    def text_embeddings(self, texts: Sequence[str]) -> Float[np.ndarray, "N E"]:
        """Returns an embedding of length 1 for each text.

        Raises:
          UserError: A text is longer than ``model.max_length`` tokens.
        """
        outputs = encoder_outputs(
            _text_vectors,
            self.model,
            self.params,
            encode_texts(texts, self.tokenizer, self.model),
        )
        return np.array(outputs, np.float32).reshape(len(texts), self.model.embedding_dim)

    def similarity(
        self,
        images: UInt8[np.ndarray, "N Y X C"],
        texts: Sequence[str],
    ) -> Float[np.ndarray, "N T"]:
        """Returns the cosine of the embeddings of each picture and each text."""
        seen = self.image_embeddings(images)
        read = self.text_embeddings(texts)
        return seen @ read.T

    def probabilities(
        self,
        images: UInt8[np.ndarray, "N Y X C"],
        labels: Sequence[str],
        template: str = LABEL,
    ) -> Float[np.ndarray, "N T"]:
        """Returns the probability of each label for each picture.

        Args:
          images: Pictures.
          labels: The labels, such as "cat" and "dog".
          template: Text of a label, in which ``{}`` stands for it, such as "a photo of a {}".

        Raises:
          UserError: There are no labels, the template has no ``{}``, or as for the embeddings.
        """
        if LABEL not in template:
            raise UserError(f"template: expected {LABEL} for the label, got {template!r:.80}")
        if not len(labels):
            raise UserError("labels: expected at least one, got none")

        texts = [template.replace(LABEL, label) for label in labels]
        scale = np.exp(np.asarray(self.params["log_scale"]))
        logits = scale * self.similarity(images, texts)

        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        return odds / odds.sum(axis=1, keepdims=True)


@functools.partial(jax.jit, static_argnums=0)
def _image_vectors(
    config: DualEncoderArchitecture,
    params: PyTree,
    images: UInt8[Array, "B Y X C"],
) -> Float[Array, "B E"]:
    model = IMAGE_TEXT.build(config)
    pixels = config.scale_pixels(images)
    found: Any = model.apply({"params": params}, pixels, method="image_embeddings")
    return unit_vectors(found)


@functools.partial(jax.jit, static_argnums=0)
def _text_vectors(
    config: DualEncoderArchitecture,
    params: PyTree,
    tokens: Int[Array, "B T"],
    types: Int[Array, "B T"],
) -> Float[Array, "B E"]:
    """Returns the embeddings of single texts, whose tokens all have type 0."""
    model = IMAGE_TEXT.build(config)
    found: Any = model.apply({"params": params}, tokens, method="text_embeddings")
    return unit_vectors(found)
