"""PNG and JPEG files in subfolders, one for each class: ``data.corpus=folder``."""

import dataclasses
import hashlib
import pathlib
from typing import Any

import numpy as np
from jaxtyping import UInt8

from jaxformer.data.images import Images, ImagesConfig, ImageSource, split_range
from jaxformer.data.picture_files import PictureForm, find_pictures, read_picture_files
from jaxformer.errors import UserError
from jaxformer.files import local_path


def _read(data: ImagesConfig, name: str, form: PictureForm | None) -> Images:
    """Reads all pictures, in an order that depends only on the names of the files.

    The order is as good as random, so that a range of a folder has pictures of all classes.
    """
    if form is None:
        raise UserError(
            f"{name}: pictures in a folder are resized for a model; give its form, such as "
            "config.model.form"
        )

    folder = local_path(name)
    classes = _class_names(data)
    unknown = sorted(set(_subfolders(folder)) - set(classes))
    if unknown:
        raise UserError(
            f"{folder}: expected folders of the classes of data.train, {', '.join(classes):.80}: "
            f"got {', '.join(unknown):.80}"
        )

    labels = {}
    for label, class_name in enumerate(classes):
        subfolder = folder / class_name
        if not subfolder.is_dir():
            continue
        for path in find_pictures(subfolder):
            labels[path] = label

    def digest(path: pathlib.Path) -> bytes:
        name = path.relative_to(folder).as_posix()
        return hashlib.sha256(name.encode()).digest()

    paths = sorted(labels, key=digest)
    images: Any = _Files(paths, form)  # decoded when a range of them is taken
    return Images(images, np.array([labels[path] for path in paths], np.int32))


@dataclasses.dataclass(frozen=True)
class _Files:
    """Pictures whose slices are decoded."""

    paths: list[pathlib.Path]
    form: PictureForm

    def __getitem__(self, chosen: Any) -> UInt8[np.ndarray, "N Y X C"]:
        return read_picture_files(self.paths[chosen], self.form)


def _class_names(data: ImagesConfig) -> tuple[str, ...]:
    """Returns the names of the folders in the training folder."""
    name, _, _ = split_range(data.train)
    folder = local_path(name)
    found = _subfolders(folder)
    if not found:
        raise UserError(
            f"{folder}: expected a folder with a folder of PNG and JPEG files for each class, got "
            "none"
        )
    return tuple(found)


def _subfolders(folder: pathlib.Path) -> list[str]:
    if not folder.is_dir():
        raise UserError(f"{folder}: expected a folder with a folder of pictures for each class")
    return sorted(
        path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")
    )


FOLDER = ImageSource("folder", place=15, read=_read, classes=_class_names)
