"""Trains a classifier of pictures."""

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Num, PyTree

from jaxformer.config import Config, ImagesConfig, data_section, model_section
from jaxformer.data.classes import check_variety, describe_classes
from jaxformer.data.corpus import Corpus
from jaxformer.data.examples import describe_example
from jaxformer.data.images import Augmentation, Images, read_images
from jaxformer.data.loader import round_up
from jaxformer.errors import UserError
from jaxformer.models.vit import ViTConfig
from jaxformer.runs.workdir import Workdir
from jaxformer.tasks.images.augmentation import augment
from jaxformer.tasks.token_task import NetworkLoss, NetworkTask
from jaxformer.training.arrays import REAL, epochs, evaluate_arrays, row_numbers
from jaxformer.training.flops import layers_flops
from jaxformer.training.losses import class_sums
from jaxformer.training.mesh import BatchShards
from jaxformer.training.task import CheckStop, Randomness, Sums


def scale_pixels(images: Num[ArrayLike, "B Y X C"]) -> Float[Array, "B Y X C"]:
    """Returns pixels from 0 to 255 as a model takes them, from -1 to 1."""
    return jnp.asarray(images, jnp.float32) / 127.5 - 1


@dataclasses.dataclass(frozen=True)
class ImageLoss(NetworkLoss):
    """Sums the label-smoothed loss over pictures, which training changes at random."""

    augmentation: Augmentation = dataclasses.field(default_factory=Augmentation)

    @classmethod
    def of(cls, config: Config) -> "ImageLoss":
        augmentation = data_section(config, ImagesConfig)
        return dataclasses.replace(super().of(config), augmentation=augmentation)

    def __call__(self, params: PyTree, batch: PyTree, randomness: Randomness | None) -> Sums:
        images = scale_pixels(batch["images"])
        if randomness is not None:
            # From the same seed as dropout, but another stream.
            key = jax.random.fold_in(randomness.key, 1)
            images = augment(images, key, randomness.row_ids, self.augmentation)
        logits = self.apply(params, randomness, lambda module, dropout: module(images, **dropout))
        return class_sums(logits, batch["labels"], batch["real"], self.label_smoothing)


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
                    f"{name}: expected labels from 0 and below model.num_classes="
                    f"{model.num_classes}, got {low} to {high}"
                )
        labels = splits[0].labels
        check_variety(data.train, len(np.unique(labels)), len(labels))
        return cls(config, *splits)

    @staticmethod
    def longest_batch(config: Config, shards: BatchShards) -> PyTree:
        rows = round_up(data_section(config, ImagesConfig).rows, shards.row_multiple)
        shape = model_section(config, ViTConfig).image_shape
        described = {"images": (jnp.uint8, shape), "labels": (jnp.int32, ()), REAL: (bool, ())}
        return {n: jax.ShapeDtypeStruct((rows, *s), dtype) for n, (dtype, s) in described.items()}

    def batches(self, start: int, shards: BatchShards) -> Iterator[PyTree]:
        """Yields pictures in the order of :meth:`example_ids`, prepared in threads."""
        arrays, seed = self._train._asdict(), self.config.training.seed
        return epochs(arrays, self._data.rows, seed, start=start, shards=shards)

    def example_ids(self, number: int) -> Sequence[int]:
        """Returns the numbers of the pictures of a batch, each once in every epoch."""
        count, seed = len(self._train.labels), self.config.training.seed
        return row_numbers(number, count, self._data.rows, seed).tolist()

    def flops(self, batch: PyTree) -> int:
        model = model_section(self.config, ViTConfig)
        return layers_flops(model, len(batch["labels"]), model.num_tokens)

    def identity(self) -> dict[str, str]:
        splits = {"train": self._train, "valid": self._valid}
        contents = {n: (*split, repr(split.images.shape).encode()) for n, split in splits.items()}
        return {n: hashlib.sha256(b"".join(map(bytes, c))).hexdigest() for n, c in contents.items()}

    def summary(self) -> str:
        train, valid = len(self._train.labels), len(self._valid.labels)
        epochs = self.config.training.steps * self._data.rows / train
        counts = f"{train:,} training pictures, {valid:,} for validation; {epochs:.1f} epochs"
        classes = model_section(self.config, ViTConfig).num_classes
        names = list(map(str, range(classes)))
        notes = describe_classes(names, self._train.labels, self._valid.labels)
        return "\n".join((counts, *self._first_examples(), *notes))

    def _first_examples(self) -> list[str]:
        """Returns a line with the size and the label of the first picture of each split."""
        lines = []
        for name, split in ((self._data.train, self._train), (self._data.valid, self._valid)):
            size = " x ".join(map(str, split.images.shape[1:]))
            sides = [("picture", size), ("label", str(split.labels[0]))]
            lines.append(describe_example(name, sides))
        return lines

    def evaluate(self, params: PyTree, mesh: Mesh, check_stop: CheckStop) -> dict[str, float]:
        arrays, rows = self._valid._asdict(), self._data.rows
        return evaluate_arrays(self.loss, params, arrays, rows, mesh, check_stop)
