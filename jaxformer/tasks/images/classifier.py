"""Classification of pictures with a trained model, and its attention to them."""

import functools
import pathlib
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, PyTree, UInt8

from jaxformer.config import Config, check_kind, model_section
from jaxformer.errors import UserError
from jaxformer.inference.weights import TrainedModel, prepare_params
from jaxformer.kinds import IMAGE_CLASSIFICATION
from jaxformer.layout import global_mesh
from jaxformer.models.vit import ViT, ViTConfig
from jaxformer.runs.workdir import use_compilation_cache
from jaxformer.tasks.images.task import scale_pixels

_BATCH_SIZE = 64


class ImageClassifier:
    """Classifies pictures with the model of a workdir.

    >>> classifier = ImageClassifier.load("runs/digits")  # doctest: +SKIP
    >>> classifier.probabilities(images).argmax(1)  # doctest: +SKIP

    Attributes:
      config: The config of the run.
      params: Parameters.
    """

    def __init__(self, config: Config, params: PyTree) -> None:
        """Initializes a classifier; :meth:`load` reads both arguments from a workdir."""
        check_kind(config, IMAGE_CLASSIFICATION)
        use_compilation_cache()
        self.config, self._model = config, model_section(config, ViTConfig)
        self.params = prepare_params(config.model, params, IMAGE_CLASSIFICATION)

    @classmethod
    def load(cls, workdir: str | pathlib.Path, *, weights: str | int = "auto") -> "ImageClassifier":
        """Reads a model from a workdir; arguments and errors as for ``Translator.load``."""
        trained = TrainedModel.load(workdir, weights=weights, kinds=(IMAGE_CLASSIFICATION,))
        return cls(trained.config, trained.params)

    def probabilities(self, images: UInt8[np.ndarray, "N Y X C"]) -> Float[np.ndarray, "N K"]:
        """Returns the probability of each class for each picture.

        Raises:
          UserError: Pictures are not of the size and the dtype that the model was trained with.
        """
        return self._run(_probabilities, images)

    def attention(self, images: UInt8[np.ndarray, "N Y X C"]) -> Float[np.ndarray, "N L H T T"]:
        """Returns the attention weights of each layer and head; the class token, if any, first."""
        return self._run(_attention, images)

    @global_mesh(None)
    def _run(self, function: Any, images: UInt8[np.ndarray, "N Y X C"]) -> np.ndarray:
        shape, images = self._model.image_shape, np.asarray(images)
        if images.dtype != np.uint8 or images.shape[1:] != shape or not len(images):
            raise UserError(
                f"expected pictures, uint8 [N, {', '.join(map(str, shape))}], got {images.dtype} "
                f"{list(images.shape)}"
            )
        found = []
        for start in range(0, len(images), _BATCH_SIZE):
            rows = images[start : start + _BATCH_SIZE]
            padded = np.pad(rows, ((0, _BATCH_SIZE - len(rows)), *[(0, 0)] * 3))
            found.append(np.asarray(function(self._model, self.params, padded))[: len(rows)])
        return np.concatenate(found)


@functools.partial(jax.jit, static_argnums=0)
def _probabilities(config: ViTConfig, params: PyTree, images: Array) -> Float[Array, "B K"]:
    logits: Any = ViT(config).apply({"params": params}, scale_pixels(images))
    return jax.nn.softmax(logits)


@functools.partial(jax.jit, static_argnums=0)
def _attention(config: ViTConfig, params: PyTree, images: Array) -> Float[Array, "B L H T T"]:
    variables, images = {"params": params}, scale_pixels(images)
    _, recorded = ViT(config).apply(variables, images, mutable="intermediates")
    stack = recorded["intermediates"]["encoder"]["layers"]
    return stack["self_attention"]["weights"][0].swapaxes(0, 1)
