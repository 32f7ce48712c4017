"""Files of pictures with texts: ``data.source=files``."""

import pathlib

from jaxformer.data.image_texts import ImageTexts, ImageTextSource
from jaxformer.data.images import read_picture_arrays, texts_in
from jaxformer.data.picture_files import PictureForm, read_picture_files
from jaxformer.data.text_files import read_file
from jaxformer.errors import UserError
from jaxformer.files import local_path

_TEXTS = "captions.txt"  # of the pictures in a folder


def _read(name: str, form: PictureForm | None) -> ImageTexts:
    """Reads the arrays ``images`` and ``texts`` of a file, or a folder."""
    path = local_path(name)
    if path.is_dir():
        return _read_folder(path, form)

    images, others = read_picture_arrays(path, {"texts": "strings [N]"})
    return ImageTexts(images, texts_in(path, len(images), others["texts"]))


def _read_folder(folder: pathlib.Path, form: PictureForm | None) -> ImageTexts:
    """Reads the pictures that the lines of ``captions.txt`` name, before a tab and a text."""
    if form is None:
        raise UserError(f"{folder}: expected an .npz file here, got a folder")

    place = folder / _TEXTS
    paths = []
    texts = []
    for number, line in enumerate(read_file(place), start=1):
        name, tab, text = line.partition("\t")
        path = folder / name
        is_inside = path.resolve().is_relative_to(folder.resolve())
        if not (tab and is_inside and path.is_file()):
            raise UserError(
                f"{place}:{number}: expected a file in this folder, a tab and a text, got "
                f"{line!r:.80}"
            )
        paths.append(path)
        texts.append(text)
    return ImageTexts(read_picture_files(paths, form), texts)


FILES = ImageTextSource("files", 10, _read)
