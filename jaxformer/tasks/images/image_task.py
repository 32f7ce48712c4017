"""Trains a classifier of pictures."""

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PyTree

from jaxformer.config import Config, ImagesConfig, data_section
from jaxformer.data.classes import check_variety, describe_classes
from jaxformer.data.corpus import Corpus
from jaxformer.data.examples import describe_example
from jaxformer.data.images import Augmentation, Images, class_names, read_images
from jaxformer.data.loader import round_up
from jaxformer.errors import UserError
from jaxformer.kinds.image_classification import IMAGE_CLASSIFICATION
from jaxformer.models.pictures import PictureArchitecture
from jaxformer.runs.workdir import Workdir
from jaxformer.tasks.images.image_augmentation import augment
from jaxformer.tasks.token_task import NetworkLoss, NetworkTask
from jaxformer.training.arrays import REAL, epochs, evaluate_arrays, row_numbers
from jaxformer.training.flops import layers_flops
from jaxformer.training.losses import class_sums
from jaxformer.training.placement import BatchShards
from jaxformer.training.task import CheckStop, Randomness, Sums


def picture_section(config: Config) -> PictureArchitecture:
    """Returns ``config.model`` of a classifier of pictures."""
    model = config.model
    assert isinstance(model, PictureArchitecture), "each model of the kind has such a section"
    return model


@dataclasses.dataclass(frozen=True)
class ImageLoss(NetworkLoss):
    """Sums the label-smoothed loss over pictures, which training changes at random."""

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
            # From the same seed as dropout, but another stream.
            key = jax.random.fold_in(randomness.key, 1)
            images = augment(
                images,
                key,
                randomness.row_ids,
                settings=self.augmentation,
            )

        logits = self.apply(params, randomness, lambda module, dropout: module(images, **dropout))
        return class_sums(
            logits,
            batch["labels"],
            batch["real"],
            smoothing=self.label_smoothing,
        )


class ImageClassification(NetworkTask):
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
        self.config = config
        self._names = names
        self._train = train
        self._valid = valid
        self._data = data_section(config, ImagesConfig)

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

        rows = round_up(data.rows, shards.row_multiple)
        return {
            "images": jax.ShapeDtypeStruct((rows, *model.image_shape), jnp.uint8),
            "labels": jax.ShapeDtypeStruct((rows,), jnp.int32),
            REAL: jax.ShapeDtypeStruct((rows,), bool),
        }

    def batches(self, start: int, shards: BatchShards) -> Iterator[PyTree]:
        """Yields pictures in the order of :meth:`example_ids`, prepared in threads."""
        return epochs(
            self._train._asdict(),
            self._data.rows,
            self.config.training.seed,
            start=start,
            shards=shards,
        )

    def example_ids(self, number: int) -> Sequence[int]:
        """Returns the numbers of the pictures of a batch, each once in every epoch."""
        numbers = row_numbers(
            number,
            len(self._train.labels),
            self._data.rows,
            seed=self.config.training.seed,
        )
        return numbers.tolist()

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

    def evaluate(
        self,
        params: PyTree,
        mesh: Mesh,
        check_stop: CheckStop,
    ) -> dict[str, float]:
        return evaluate_arrays(
            self.loss,
            params,
            self._valid._asdict(),
            rows=self._data.rows,
            mesh=mesh,
            check_stop=check_stop,
        )


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
