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

    is_folder = path.is_dir()
    if not is_folder and path.suffix.lower() not in SUFFIXES:
        return _read_arrays(path)

    if is_folder:
        folder = path
        paths = find_pictures(path)
    else:
        folder = path.parent
        paths = [path]
    images = read_picture_files(paths, form)

    numbers = {name: number for number, name in enumerate(names)}
    labels = []
    for each in paths:
        *folders, _ = each.relative_to(folder).parts
        # A file beside the folders of classes has no label, whatever its name.
        label = numbers.get(folders[0], -1) if folders else -1
        labels.append(label)

    return Pictures(
        images,
        labels=np.array(labels),
        texts=None,
        files=[str(each) for each in paths],
    )


def _read_arrays(path: pathlib.Path) -> Pictures:
    from jaxformer.data.images import labels_in, read_picture_arrays, texts_in

    images, others = read_picture_arrays(path, {}, optional=("labels", "texts"))
    labels = labels_in(path, len(images), others)

    texts = None
    if "texts" in others:
        texts = texts_in(path, len(images), others["texts"])
    return Pictures(images, labels, texts=texts, files=[])


def write_rows(output: "OutputFile", rows: Sequence[str], pictures: Pictures) -> None:
    """Writes a line for each picture, and its file after a tab if it has one."""
    with open_output(output) as write:
        for number, row in enumerate(rows):
            if pictures.files:
                file = replace_controls(pictures.files[number])
                row = f"{row}\t{file}"
            write([row])
