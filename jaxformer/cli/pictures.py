"""Pictures that commands read: folders of files, single files, and arrays."""

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from jaxformer.cli.outputs import open_output
from jaxformer.data.characters import replace_controls

if TYPE_CHECKING:
    import numpy as np

    from jaxformer.cli.options import OutputFile
    from jaxformer.data.picture_files import PictureForm


class Pictures(NamedTuple):
    """Pictures, and what is known about them.

    Attributes:
      images: uint8, [N, height, width, channels].
      labels: Numbers of classes, [N]; -1 for pictures without a label.
      texts: A text about each picture; None without any.
      files: Paths of the files; none of arrays.
    """

    images: "np.ndarray"
    labels: "np.ndarray"
    texts: list[str] | None
    files: list[str]

    @property
    def has_labels(self) -> bool:
        return bool((self.labels >= 0).all())


def read_pictures(
    path: pathlib.Path,
    form: "PictureForm",
    names: Sequence[str] = (),
) -> Pictures:
    """Reads a folder of PNG and JPEG files, one such file, or the arrays of an ``.npz`` file.

    Args:
      path: The folder or the file.
      form: The form that files are converted to.
      names: Names of classes; a folder in the folder with such a name has pictures of this class.
    """
    import numpy as np

    from jaxformer.data.picture_files import SUFFIXES, find_pictures, read_picture_files

    if not path.is_dir() and path.suffix.lower() not in SUFFIXES:
        return _read_arrays(path)

    folder = path if path.is_dir() else path.parent
    paths = find_pictures(path) if path.is_dir() else [path]
    images = read_picture_files(paths, form)

    # A file beside the folders of classes has no label, whatever its name.
    numbers = {name: number for number, name in enumerate(names)}
    places = [each.relative_to(folder).parts[:-1] for each in paths]
    labels = [numbers.get(place[0], -1) if place else -1 for place in places]
    return Pictures(images, np.array(labels), None, [str(each) for each in paths])


def _read_arrays(path: pathlib.Path) -> Pictures:
    from jaxformer.data.images import labels_in, read_picture_arrays, texts_in

    images, others = read_picture_arrays(path, {}, optional=("labels", "texts"))
    labels = labels_in(path, len(images), others)
    texts = others.get("texts")
    if texts is None:
        return Pictures(images, labels, None, [])
    return Pictures(images, labels, texts_in(path, len(images), texts), [])


def write_rows(output: "OutputFile", rows: Sequence[str], pictures: Pictures) -> None:
    """Writes a line for each picture, and its file after a tab if it has one."""
    with open_output(output) as write:
        for number, row in enumerate(rows):
            place = pictures.files[number : number + 1]
            write(["\t".join([row, *map(replace_controls, place)])])
