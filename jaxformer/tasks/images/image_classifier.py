"""Classification of pictures with a trained model, and its attention to them."""

import functools
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, PyTree, UInt8

from jaxformer.config import Config, check_kind
from jaxformer.errors import UserError
from jaxformer.inference.parameter_arrays import prepare_params
from jaxformer.inference.weights import TrainedModel
from jaxformer.kinds.image_classification import IMAGE_CLASSIFICATION
from jaxformer.layout import global_mesh
from jaxformer.models.encoder import class_probabilities
from jaxformer.models.pictures import PictureArchitecture
from jaxformer.runs.workdir import use_compilation_cache
from jaxformer.tasks.images.image_task import picture_section

_BATCH_SIZE = 64


class ImageClassifier:
    """Classifies pictures with the model of a workdir.

    >>> classifier = ImageClassifier.load("runs/digits")  # doctest: +SKIP
    >>> classifier.probabilities(images).argmax(axis=1)  # doctest: +SKIP
    """

    def __init__(self, config: Config, params: PyTree, labels: Sequence[str] = ()) -> None:
        """Initializes a classifier; :meth:`load` reads all arguments from a workdir.

        Labels are names of the classes; by default, their numbers.
        """
        check_kind(config, IMAGE_CLASSIFICATION)
        use_compilation_cache()

        self.config = config
        self.model = picture_section(config)
        numbers = map(str, range(self.model.num_classes))
        self.labels = list(labels or numbers)
        self.params = prepare_params(config.model, params, IMAGE_CLASSIFICATION)

    @classmethod
    def load(cls, workdir: str | pathlib.Path, *, weights: str | int = "auto") -> "ImageClassifier":
        """Reads a model from a workdir; arguments and errors as for ``Translator.load``."""
        trained = TrainedModel.load(workdir, weights=weights, kinds=(IMAGE_CLASSIFICATION,))
        return cls(trained.config, trained.params, trained.folder.read_class_names())

    def probabilities(self, images: UInt8[np.ndarray, "N Y X C"]) -> Float[np.ndarray, "N K"]:
        """Returns the probability of each class for each picture.

        Raises:
          UserError: Pictures are not uint8, or of another size than in training, or the model has
            no classes.
        """
        if not self.model.num_classes:
            raise UserError(
                "expected a model with classes, got model.num_classes=0; train a classifier that "
                "begins with it: --config.training.init_from"
            )
        probabilities, *_ = self._run(images)
        return probabilities

    def attention(self, images: UInt8[np.ndarray, "N Y X C"]) -> Float[np.ndarray, "N L H T T"]:
        """Returns the attention weights of each layer and head; the class token, if any, first.

        Raises:
          UserError: As for :meth:`probabilities`, or attention is not between all patches.
        """
        if self.model.attention_grid is None:
            raise UserError(
                "expected a model with attention between all patches in all layers, such as vit: "
                f"got model.architecture={self.model.architecture}"
            )
        _, weights = self._run(images, with_weights=True)
        return weights

    @global_mesh(None)
    def _run(self, images: np.ndarray, with_weights: bool = False) -> tuple[np.ndarray, ...]:
        images = self.model.as_pictures(images)

        # All batches have one shape, so that there is one program.
        found = []
        for start in range(0, len(images), _BATCH_SIZE):
            rows = images[start : start + _BATCH_SIZE]
            missing = _BATCH_SIZE - len(rows)
            only_rows = ((0, missing), (0, 0), (0, 0), (0, 0))
            padded = np.pad(rows, only_rows)

            results = _apply(self.model, with_weights, self.params, padded)
            results = jax.device_get(results)
            found.append([array[: len(rows)] for array in results])

        columns = zip(*found, strict=True)
        return tuple(map(np.concatenate, columns))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _apply(
    config: PictureArchitecture,
    with_weights: bool,
    params: PyTree,
    images: Array,
) -> tuple[Float[Array, "B ..."], ...]:
    mutable = ["intermediates"] if with_weights else []
    variables: Any = {"params": params}
    model = IMAGE_CLASSIFICATION.build(config)
    pixels = config.scale_pixels(images)
    logits, seen = model.apply(variables, pixels, mutable=mutable)

    probabilities = class_probabilities(logits)
    if not with_weights:
        return (probabilities,)

    stack: Any = seen["intermediates"]["encoder"]["layers"]
    weights = stack["self_attention"]["weights"][0]  # [L, B, H, T, T]
    return probabilities, weights.swapaxes(0, 1)
