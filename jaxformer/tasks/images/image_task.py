"""Trains a classifier of pictures."""

import dataclasses
import hashlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxformer.config import Config, ImagesConfig, data_section
from jaxformer.data.classes import check_variety, describe_classes
from jaxformer.data.corpus import Corpus
from jaxformer.data.examples import describe_example
from jaxformer.data.images import Augmentation, Images, class_names, read_images
from jaxformer.errors import UserError
from jaxformer.kinds.image_classification import IMAGE_CLASSIFICATION
from jaxformer.models.pictures import PictureArchitecture
from jaxformer.runs.workdir import Workdir
from jaxformer.tasks.array_task import ArrayTask, abstract_rows
from jaxformer.tasks.images.image_augmentation import change_pictures
from jaxformer.tasks.token_task import NetworkLoss, NetworkTask
from jaxformer.training.flops import layers_flops
from jaxformer.training.losses import class_sums
from jaxformer.training.placement import BatchShards
from jaxformer.training.task import Randomness, Sums


def picture_section(config: Config) -> PictureArchitecture:
    """Returns ``config.model`` of a classifier of pictures."""
    model = config.model
    assert isinstance(model, PictureArchitecture), "each model of the kind has such a section"
    return model


@dataclasses.dataclass(frozen=True)
class ImageLoss(NetworkLoss):
    """Sums the label-smoothed loss over pictures, which training changes at random."""

    smooths_labels = True

    model: PictureArchitecture
    augmentation: Augmentation = dataclasses.field(default_factory=Augmentation)

    @classmethod
    def of(cls, config: Config) -> "ImageLoss":
        augmentation = data_section(config, ImagesConfig)
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

        logits = self.apply(params, randomness, lambda module, dropout: module(images, **dropout))
        return class_sums(
            logits,
            batch["labels"],
            batch["real"],
            smoothing=self.label_smoothing,
        )


class ImageClassification(ArrayTask):
    """Trains a classifier, such as a :class:`~jaxformer.ViT`; validates with loss and accuracy."""

    kind = IMAGE_CLASSIFICATION
    loss_class = ImageLoss
    log_formats = {"accuracy": "accuracy {:.4f}"}  # noqa: RUF012

    def __init__(
        self,
        config: Config,
        train: Images,
        valid: Images,
        names: Sequence[str] = (),
    ) -> None:
        """Takes the pictures of both splits, and the names of the classes if they have any."""
        self._data = data_section(config, ImagesConfig)
        super().__init__(config, train._asdict(), valid._asdict(), rows=self._data.rows)
        self._names = names
        self._train = train
        self._valid = valid

    @classmethod
    def open(
        cls,
        config: Config,
        folder: Workdir,
        corpus: Corpus | None = None,
    ) -> NetworkTask:
        if corpus is not None:
            raise UserError("corpus: expected none with pictures; name files in data.train")

        data = data_section(config, ImagesConfig)
        model = picture_section(config)

        names = class_names(data)
        if names and len(names) != model.num_classes:
            raise UserError(
                f"model.num_classes must be {len(names)}, the number of classes of {data.train}, "
                f"{', '.join(names):.80}: got {model.num_classes}"
            )

        train = read_images(data, data.train, model.form)
        valid = read_images(data, data.valid, model.form)
        _check_split(data.train, train, model)
        _check_split(data.valid, valid, model)

        classes = np.unique(train.labels)
        check_variety(data.train, len(classes), len(train.labels))

        return cls(config, train, valid, names)

    @classmethod
    def longest_batch(cls, config: Config, shards: BatchShards) -> PyTree:
        data = data_section(config, ImagesConfig)
        model = picture_section(config)

        example = {
            "images": jax.ShapeDtypeStruct(model.image_shape, jnp.uint8),
            "labels": jax.ShapeDtypeStruct((), jnp.int32),
        }
        return abstract_rows(data.rows, shards, example)

    def flops(self, batch: PyTree) -> int:
        rows = len(batch["labels"])
        flops = 0
        for stack in picture_section(self.config).stacks:
            flops += layers_flops(stack.sizes, rows * stack.sequences, stack.length)
        return flops

    def identity(self) -> dict[str, str]:
        found = {"train": _sha256(self._train), "valid": _sha256(self._valid)}
        if self._names:
            found["classes"] = hashlib.sha256(repr(self._names).encode()).hexdigest()
        return found

    def save(self, workdir: Workdir) -> None:
        workdir.write_class_names(self._names)

    def summary(self) -> str:
        train = len(self._train.labels)
        valid = len(self._valid.labels)
        epochs = self.config.training.steps * self._data.rows / train
        counts = f"{train:,} training pictures, {valid:,} for validation; {epochs:.1f} epochs"

        names = self._class_names()
        notes = describe_classes(names, self._train.labels, self._valid.labels)

        examples = self._first_examples()
        return "\n".join((counts, *examples, *notes))

    def _class_names(self) -> list[str]:
        """Returns the names of the classes, or their numbers."""
        numbers = map(str, range(picture_section(self.config).num_classes))
        return list(self._names or numbers)

    def _first_examples(self) -> list[str]:
        """Returns a line with the size and the label of the first picture of each split."""
        lines = []
        for name, split in ((self._data.train, self._train), (self._data.valid, self._valid)):
            size = " x ".join(map(str, split.images.shape[1:]))
            label = self._class_names()[split.labels[0]]
            lines.append(describe_example(name, [("picture", size), ("label", label)]))
        return lines


def _check_split(name: str, split: Images, model: PictureArchitecture) -> None:
    """Checks that the pictures and the labels of a split suit the model."""
    model.check_split(name, split.images)

    low = split.labels.min()
    high = split.labels.max()
    if not 0 <= low <= high < model.num_classes:
        raise UserError(
            f"{name}: expected labels from 0 and below model.num_classes="
            f"{model.num_classes}, got {low} to {high}"
        )


def _sha256(split: Images) -> str:
    digest = hashlib.sha256()
    digest.update(bytes(split.images))
    digest.update(bytes(split.labels))
    digest.update(repr(split.images.shape).encode())
    return digest.hexdigest()
