"""Pictures with labels: ``.npz`` files, scikit-learn's digits, or TensorFlow Datasets."""

import dataclasses
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Int, UInt8

from jaxformer.data.array_files import read_arrays
from jaxformer.data.corpus import DataSection
from jaxformer.data.held_out import is_share
from jaxformer.errors import UserError, needs_package
from jaxformer.fields import check_values, setting
from jaxformer.files import local_path

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
        digits of scikit-learn; "tfds_images" reads a builder of TensorFlow Datasets.
      builder: For "tfds_images": the builder, for example "cifar10".
      directory: For "tfds_images": the data directory; the default of TFDS when empty.
      train: Training split: a file, or the name of a split. "digits" has "train" and "test", by
        ``train_test_split(random_state=0)``, and "all" in the original order, one writer after
        another. ``[20%:80%]`` after the name selects a range, as in "all[:50%]".
      valid: Validation split, in the same form.
      rows: Pictures of a global batch.
    """

    corpus: Literal["images", "digits", "tfds_images"] = "images"
    builder: str = ""
    directory: str = setting("", may_change=True)
    train: str = setting("train", may_change=True)
    valid: str = setting("test", may_change=True)
    rows: int = setting(128, "positive")
    length_field = None

    def __post_init__(self) -> None:
        check_values(self, "data")
        self.check_paths("directory", "train", "valid")
        if self.corpus != "tfds_images" and is_share(self.valid):
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
    images: UInt8[np.ndarray, "N Y X C"]
    labels: Int[np.ndarray, " N"]


def read_images(data: ImagesConfig, split: str) -> Images:
    """Reads a split, or the range of it that a suffix such as ``[:80%]`` selects."""
    match = _SLICE.fullmatch(split)
    assert match is not None, "the pattern matches any name"
    name, start_percent, stop_percent = match.groups()

    if data.corpus == "digits":
        images, labels = _read_digits(name)
    elif data.corpus == "images":
        images, labels = read_npz(name)
    else:
        images, labels = _read_tfds(data, name)

    count = len(images)
    start = count * int(start_percent or 0) // 100
    stop = count * int(stop_percent or 100) // 100
    if stop <= start:
        raise UserError(f"{split}: expected pictures, got none")

    return Images(images[start:stop], labels[start:stop])


def read_npz(name: str, needs_labels: bool = True) -> Images:
    """Reads the arrays ``images`` and ``labels`` of a file; without labels, they are -1."""
    path = local_path(name)
    needed = {"labels": "integers [N]"}
    images, others = read_image_file(path, needed if needs_labels else {}, optional=("labels",))

    unlabeled = np.full(len(images), -1)
    labels = others.get("labels", unlabeled)
    are_integers = labels.dtype.kind in "iu"
    if labels.shape != unlabeled.shape or not are_integers:
        expected = f"labels, integers [{len(images)}]"
        raise _form_error(path, expected, labels)

    return Images(images, labels.astype(np.int32))


def read_image_file(
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
    if not needed.keys() <= arrays.keys():
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
    return UserError(f"{path}: expected {expected}, got {given.dtype} {list(given.shape)}")


def _read_digits(name: str) -> Images:
    with needs_package("scikit-learn", "which has the digits", extra="vision"):
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

    found: Any = load_digits()
    pixels = found.images[..., None] * (255 / 16)  # the digits are from 0 to 16
    images = np.rint(pixels).astype(np.uint8)
    labels = found.target.astype(np.int32)

    everything = np.arange(len(labels))
    train, test = train_test_split(everything, random_state=0)
    splits = {
        "train": train,
        "test": test,
        "all": everything,
    }
    if name not in splits:
        raise UserError(f"the digits have the splits {', '.join(splits)}: got {name!r}")

    chosen = splits[name]
    return Images(images[chosen], labels[chosen])


def _read_tfds(data: ImagesConfig, name: str) -> Images:
    with needs_package("tensorflow-datasets", "which reads the pictures", extra="tfds"):
        import tensorflow_datasets as tfds

    try:
        builder: Any = tfds.builder(data.builder, data_dir=data.directory or None)
        images = []
        labels = []
        for example in builder.as_data_source(name):
            images.append(np.asarray(example["image"]))
            labels.append(int(example["label"]))

        return Images(np.stack(images), np.array(labels, np.int32))
    except Exception as error:  # of any type, depending on what is missing
        first_line = str(error).partition("\n")[0]
        raise UserError(
            f"data.builder={data.builder}, split {name!r}: expected pictures of one size with "
            "labels, prepared by tfds.builder(NAME, file_format='array_record')"
            f".download_and_prepare(): {first_line}"
        ) from None
