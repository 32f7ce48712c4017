"""Pictures with labels, and their sources."""

import dataclasses
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, UInt8

from jaxformer.data import image_sources
from jaxformer.data.array_files import read_arrays
from jaxformer.data.corpus import DataSection
from jaxformer.data.held_out import is_share
from jaxformer.data.picture_files import PictureForm
from jaxformer.errors import UserError
from jaxformer.fields import check_one_of, check_values, setting
from jaxformer.files import local_path
from jaxformer.registry import find_entries

_SLICE = re.compile(r"(.*?)(?:\[(?:(\d+)%)?:(?:(\d+)%)?\])?")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Random changes of training pictures, uniform in these ranges.

    Attributes:
      shift: Largest shift along each axis, in pixels.
      rotation: Largest angle, in degrees.
      zoom: Largest relative change of the size, and of the ratio of height to width.
      shear: Largest shear: pixels to the right for each pixel down.
      warp: Largest shift of parts of a picture in different directions, in pixels: an elastic
        deformation (Simard et al. 2003).
      flip: Reflect half of the pictures left to right.
    """

    shift: float = setting(0.0, "any")
    rotation: float = setting(0.0, "any")
    zoom: float = setting(0.0, "fraction")
    shear: float = setting(0.0, "any")
    warp: float = setting(0.0, "any")
    flip: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImagesConfig(Augmentation, DataSection):
    """Pictures with labels, to train a classifier on.

    Attributes:
      corpus: "images" reads ``.npz`` files with the arrays ``images``, uint8, [N, height, width,
        channels] or [N, height, width], and ``labels``, integers from 0; "digits" has the 1,797
        digits of scikit-learn; "tfds_images" reads a builder of TensorFlow Datasets; "folder" reads
        PNG and JPEG files, in one folder for each class, and resizes them.
      builder: For "tfds_images": the builder, for example "cifar10".
      directory: For "tfds_images": the data directory; the default of TFDS when empty.
      train: Training split: a file, a folder, or the name of a split. "digits" has "train" and
        "test", by ``train_test_split(random_state=0)``, and "all" in the original order, one writer
        after another. ``[20%:80%]`` after the name selects a range, as in "all[:50%]".
      valid: Validation split, in the same form.
      rows: Pictures of a global batch.
    """

    corpus: str = "images"
    builder: str = ""
    directory: str = setting("", may_change=True)
    train: str = setting("train", may_change=True)
    valid: str = setting("test", may_change=True)
    rows: int = setting(128, "positive")
    length_field = None

    def __post_init__(self) -> None:
        check_values(self, "data")
        check_one_of("data.corpus", self.corpus, known_images())
        self.check_paths("directory", "train", "valid")

        if is_share(self.valid):
            raise UserError(
                "data.valid: expected a split or a range of pictures, such as data.train="
                f'"{self.train}[:80%]" with data.valid="{self.train}[80%:]": got {self.valid}'
            )
        if self.tokenizer is not None:
            raise UserError(f"data.tokenizer: pictures have none, got {self.tokenizer}")

    @property
    def batch(self) -> tuple[str, str]:
        return f"{self.rows:,} pictures", "data.rows"


class Images(NamedTuple):
    """Pictures and their classes, from 0; -1 for a picture without a label."""

    images: UInt8[np.ndarray, "N Y X C"]
    labels: Int[np.ndarray, " N"]


class ImageSource(NamedTuple):
    """A source of pictures with labels.

    Attributes:
      name: The value of ``data.corpus`` that selects it.
      place: Number that sorts the sources in messages.
      read: Returns the pictures of a split, given its name without a range, and the form in which a
        model takes them, which a source of files gives them.
      classes: Returns the names of the classes in the order of their labels, or none if the source
        has only numbers.

    The pictures that ``read`` returns may be any object whose slices are arrays.
    """

    name: str
    place: int
    read: Callable[[ImagesConfig, str, PictureForm | None], Images]
    classes: Callable[[ImagesConfig], tuple[str, ...]] = lambda data: ()


def known_images() -> dict[str, ImageSource]:
    """Returns all sources of pictures with labels by name."""
    return find_entries(image_sources, ImageSource)


def read_images(data: ImagesConfig, split: str, form: PictureForm | None = None) -> Images:
    """Reads a split, or the range of it that a suffix such as ``[:80%]`` selects.

    Args:
      data: The section of a config.
      split: A value of ``data.train`` or ``data.valid``.
      form: What the model takes, such as ``config.model.form``; only "folder" needs it.
    """
    name, start_percent, stop_percent = split_range(split)
    source = known_images()[data.corpus]
    images, labels = source.read(data, name, form)

    count = len(labels)
    start = count * start_percent // 100
    stop = count * stop_percent // 100
    if stop <= start:
        raise UserError(f"{split}: expected pictures, got none")

    # A source need not have an array of all its pictures; its slices are arrays.
    chosen_images = np.asarray(images[start:stop])
    return Images(chosen_images, labels[start:stop])


def class_names(data: ImagesConfig) -> tuple[str, ...]:
    """Returns the names of the classes, or none if the source has only numbers."""
    source = known_images()[data.corpus]
    return source.classes(data)


def split_range(split: str) -> tuple[str, int, int]:
    """Returns the name of a split, and the percents where its range starts and stops.

    >>> split_range("train[20%:]"), split_range("train")
    (('train', 20, 100), ('train', 0, 100))
    """
    match = _SLICE.fullmatch(split)
    assert match is not None, "the pattern matches any name"

    name, start, stop = match.groups()
    start_percent = int(start or 0)
    stop_percent = int(stop or 100)
    return name, start_percent, stop_percent


def read_npz(name: str, needs_labels: bool = True) -> Images:
    """Reads the arrays ``images`` and ``labels`` of a file; without labels, they are -1."""
    path = local_path(name)
    needed = {}
    if needs_labels:
        needed["labels"] = "integers [N]"

    images, others = read_picture_arrays(path, needed, optional=["labels"])
    labels = labels_in(path, len(images), others)
    return Images(images, labels)


def labels_in(
    path: pathlib.Path,
    count: int,
    arrays: Mapping[str, np.ndarray],
) -> Int[np.ndarray, " N"]:
    """Returns the array ``labels`` of a file with so many pictures; -1 if there is none."""
    unlabeled = np.full(count, -1)
    labels = arrays.get("labels", unlabeled)
    are_integers = labels.dtype.kind in "iu"
    has_shape = labels.shape == unlabeled.shape
    if not has_shape or not are_integers:
        raise _form_error(path, f"labels, integers [{count}]", labels)
    return labels.astype(np.int32)


def texts_in(path: pathlib.Path, count: int, texts: np.ndarray) -> list[str]:
    """Returns the texts of an array ``texts`` of a file with so many pictures."""
    are_strings = texts.dtype.kind == "U"
    has_shape = texts.shape == (count,)
    if not are_strings or not has_shape:
        raise _form_error(path, f"texts, strings [{count}]", texts)
    return texts.tolist()


def read_picture_arrays(
    path: pathlib.Path,
    needed: Mapping[str, str],
    optional: Sequence[str] = (),
) -> tuple[UInt8[np.ndarray, "N Y X C"], dict[str, np.ndarray]]:
    """Reads the array ``images`` of an ``.npz`` file, and others.

    Args:
      path: The file.
      needed: Other arrays that it must have, by name, and the form of each in messages.
      optional: Arrays that it may have.

    Returns:
      The pictures, and the other arrays by name.
    """
    form = "uint8 [N, height, width, channels]"
    needed = {"images": form, **needed}
    arrays, names = read_arrays(path, {*needed, *optional})

    has_all = needed.keys() <= arrays.keys()
    if not has_all:
        named = [f"{name}, {form}" for name, form in needed.items()]
        wanted = " and ".join(named)
        given = ", ".join(names)[:80] or "none"
        raise UserError(f"{path}: expected the arrays {wanted}; got {given}")

    images = arrays.pop("images")
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4 or images.dtype != np.uint8:
        raise _form_error(path, f"images, {form}", images)
    return images, arrays


def _form_error(
    path: pathlib.Path,
    expected: str,
    given: np.ndarray,
) -> UserError:
    shape = list(given.shape)
    return UserError(f"{path}: expected {expected}, got {given.dtype} {shape}")
