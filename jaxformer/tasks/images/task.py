"""Trains a classifier of pictures."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Num, PyTree

from jaxformer.config import Config, ImagesConfig, data_section, model_section
from jaxformer.data.corpus import Corpus
from jaxformer.data.images import Augmentation, Images, read_images
from jaxformer.data.loader import prefetch, round_up
from jaxformer.errors import UserError
from jaxformer.kinds import IMAGE_CLASSIFICATION
from jaxformer.models.flops import layers_flops
from jaxformer.models.vit import ViTConfig
from jaxformer.runs.run_directory import check_identity
from jaxformer.runs.workdir import Workdir
from jaxformer.tasks.images.augmentation import augment
from jaxformer.tasks.token_task import NetworkLoss, NetworkTask
from jaxformer.training.losses import class_sums
from jaxformer.training.mesh import BatchShards
from jaxformer.training.task import Randomness, Sums
from jaxformer.training.validation import evaluate_loss


class ImageBatch(NamedTuple):
    """Pictures of a global batch and their labels; -1 for an empty row."""

    images: Any  # uint8 [B, Y, X, C]
    labels: Any  # int32 [B]


def scale_pixels(images: Num[ArrayLike, "B Y X C"]) -> Float[Array, "B Y X C"]:
    """Returns pixels from 0 to 255 as a model takes them, from -1 to 1."""
    return jnp.asarray(images, jnp.float32) / 127.5 - 1


@dataclasses.dataclass(frozen=True)
class ImageLoss(NetworkLoss):
    """Sums the label-smoothed loss over pictures, which training changes at random."""

    network = staticmethod(IMAGE_CLASSIFICATION.build)
    augmentation: Augmentation = dataclasses.field(default_factory=Augmentation)

    @classmethod
    def of(cls, config: Config) -> "ImageLoss":
        augmentation = data_section(config, ImagesConfig)
        return dataclasses.replace(super().of(config), augmentation=augmentation)

    def __call__(self, params: PyTree, batch: ImageBatch, randomness: Randomness | None) -> Sums:
        images, labels = scale_pixels(batch.images), jnp.asarray(batch.labels)
        if randomness is not None:
            # From the same seed as dropout, but another stream.
            key = jax.random.fold_in(randomness.key, 1)
            images = augment(images, key, randomness.row_ids, self.augmentation)
        logits = self.apply(params, randomness, lambda module, dropout: module(images, **dropout))
        return class_sums(logits, labels, labels >= 0, self.label_smoothing)


class ImageClassification(NetworkTask):
    """Trains a :class:`~jaxformer.ViT`; validates with loss and accuracy."""

    loss_class = ImageLoss
    log_formats = {"accuracy": "accuracy {:.4f}"}  # noqa: RUF012

    def __init__(self, config: Config, train: Images, valid: Images) -> None:
        self.config, self._train, self._valid = config, train, valid
        self._data = data_section(config, ImagesConfig)

    @classmethod
    def open(cls, config: Config, folder: Workdir, corpus: Corpus | None = None) -> NetworkTask:
        if corpus is not None:
            raise UserError("corpus: expected none with pictures; name files in data.train")
        data, model = data_section(config, ImagesConfig), model_section(config, ViTConfig)
        splits = [read_images(data, name) for name in (data.train, data.valid)]
        for name, split in zip((data.train, data.valid), splits, strict=True):
            if (shape := split.images.shape[1:]) != model.image_shape:
                raise UserError(
                    f"model.height, model.width and model.channels must be {shape}, as in the "
                    f"pictures of {name}: got {model.image_shape}"
                )
            low, high = split.labels.min(), split.labels.max()
            if not 0 <= low <= high < model.num_classes:
                raise UserError(
                    f"{name}: expected labels below model.num_classes={model.num_classes}, got "
                    f"{low} to {high}"
                )
        task = cls(config, *splits)
        check_identity(folder, task.identity())
        return task

    @staticmethod
    def longest_batch(config: Config, shards: BatchShards) -> ImageBatch:
        rows = round_up(data_section(config, ImagesConfig).rows, shards.row_multiple)
        shape = model_section(config, ViTConfig).image_shape
        images = jax.ShapeDtypeStruct((rows, *shape), jnp.uint8)
        return ImageBatch(images, jax.ShapeDtypeStruct((rows,), jnp.int32))

    def batches(self, start: int, shards: BatchShards) -> Iterator[ImageBatch]:
        """Yields pictures in the order of :meth:`example_ids`, prepared in threads."""

        def batch_of(step: int) -> ImageBatch:
            return self._batch(self._train, self.example_ids(step), shards)

        return prefetch(batch_of, start, self.config.training.steps)

    def example_ids(self, number: int) -> Sequence[int]:
        """Returns the numbers of the pictures of a batch, each once in every epoch."""
        count, rows, seed = len(self._train.labels), self._data.rows, self.config.training.seed
        places = [divmod(n, count) for n in range(number * rows, (number + 1) * rows)]
        epochs = {epoch for epoch, _ in places}
        orders = {e: np.random.default_rng((seed, e)).permutation(count) for e in epochs}
        return [int(orders[epoch][place]) for epoch, place in places]

    def _batch(self, split: Images, ids: Any, shards: BatchShards) -> ImageBatch:
        images, labels = split.images[ids], split.labels[ids]
        empty = round_up(self._data.rows, shards.row_multiple) - len(ids)
        images = np.pad(images, ((0, empty), *[(0, 0)] * 3))
        return shards.local(ImageBatch(images, np.pad(labels, (0, empty), constant_values=-1)))

    def flops(self, batch: ImageBatch) -> int:
        model = model_section(self.config, ViTConfig)
        return layers_flops(model, len(batch.labels), model.num_tokens)

    def identity(self) -> dict[str, str]:
        splits = {"train": self._train, "valid": self._valid}
        contents = {n: (*split, repr(split.images.shape).encode()) for n, split in splits.items()}
        return {n: hashlib.sha256(b"".join(map(bytes, c))).hexdigest() for n, c in contents.items()}

    def summary(self) -> str:
        train, valid = len(self._train.labels), len(self._valid.labels)
        epochs = self.config.training.steps * self._data.rows / train
        return f"{train:,} training pictures, {valid:,} for validation; {epochs:.1f} epochs"

    def evaluate(
        self, params: PyTree, mesh: Mesh, check_stop: Callable[[], None]
    ) -> dict[str, float]:
        shards, count = BatchShards.of(mesh), len(self._valid.labels)
        starts = range(0, count, self._data.rows)
        ids = (np.arange(n, min(n + self._data.rows, count)) for n in starts)
        batches = (self._batch(self._valid, each, shards) for each in ids)
        return evaluate_loss(self.loss, params, batches, mesh, check_stop)
