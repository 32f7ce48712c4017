"""PNG and JPEG files, decoded and resized as a model takes pictures."""

import pathlib
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import UInt8

from jaxformer.errors import UserError, needs_package, prefix_errors
from jaxformer.files import explain_read_errors, open_file
from jaxformer.waits import announce

SUFFIXES = (".png", ".jpg", ".jpeg")
_THREADS = 8
# The modes of pictures with 16 bits, or more, in each pixel.
_DEEP_MODES = ("I", "I;16", "I;16B", "I;16L", "I;16N")


class PictureForm(NamedTuple):
    """The form of the pictures that a model takes.

    Attributes:
      height: Height in pixels; also ``width``, and ``channels``: 1 for gray, or 3.
      resampling: Interpolation of pictures of other sizes: "bilinear" or "bicubic".
      shortest_side: Pixels that the shorter side is resized to, before the center is cut out; None
        to resize both sides, whatever their ratio.
    """

    height: int
    width: int
    channels: int
    resampling: str = "bilinear"
    shortest_side: int | None = None


def find_pictures(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the PNG and JPEG files below a folder, sorted; hidden files are left out.

    Raises:
      UserError: There is none.
    """
    found = []
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        is_hidden = any(part.startswith(".") for part in parts)
        if path.suffix.lower() in SUFFIXES and path.is_file() and not is_hidden:
            found.append(path)

    if not found:
        raise UserError(f"{folder}: expected {', '.join(SUFFIXES)} files, got none")
    return found


def read_picture_files(
    paths: Sequence[pathlib.Path],
    form: PictureForm,
) -> UInt8[np.ndarray, "N Y X C"]:
    """Reads pictures in threads.

    Raises:
      UserError: A file is no such picture, or is damaged, or all together do not fit in memory.
    """
    with needs_package("pillow", "which decodes PNG and JPEG", extra="vision"):
        import PIL.Image  # noqa: F401

    if form.channels not in (1, 3):
        raise UserError(
            f"model.channels must be 1 or 3 for PNG and JPEG files, gray or in color: got "
            f"{form.channels}"
        )

    shape = (len(paths), form.height, form.width, form.channels)
    try:
        images = np.empty(shape, np.uint8)
    except MemoryError:
        raise UserError(
            f"expected pictures that fit in memory, got {len(paths):,} of {form.height} x "
            f"{form.width} pixels; read a range of them, such as data.train=FOLDER[:10%]"
        ) from None

    def read(number: int) -> None:
        images[number] = read_picture(paths[number], form)

    with announce(f"reading {len(paths):,} pictures"), ThreadPoolExecutor(_THREADS) as pool:
        for _ in pool.map(read, range(len(paths))):
            pass  # raises the errors of a thread
    return images


def read_picture(path: pathlib.Path, form: PictureForm) -> UInt8[np.ndarray, "Y X C"]:
    """Reads a picture as image processors of transformers do, which use Pillow, too.

    The orientation that a camera has recorded is applied. Transparency is dropped, and pictures of
    16 bits are rounded to 8.
    """
    import PIL.Image
    import PIL.ImageOps

    place = f"{path}: expected a PNG or JPEG file"
    # Damage raises exceptions of any type; a warning of a very large picture is one, too.
    with (
        explain_read_errors(path),
        open_file(path) as stream,
        prefix_errors(place, Exception),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error", PIL.Image.DecompressionBombWarning)
        with PIL.Image.open(stream, formats=("PNG", "JPEG")) as opened:
            opened.load()
            upright = PIL.ImageOps.exif_transpose(opened)
            picture = _with_channels(upright, form.channels)
            resized = _resize(picture, form)

    pixels = np.asarray(resized, np.uint8)
    return pixels.reshape(form.height, form.width, form.channels)


def _with_channels(picture: Any, channels: int) -> Any:
    import PIL.Image

    if picture.mode in _DEEP_MODES:  # Pillow would cut off values above 255.
        values = np.asarray(picture).astype(np.float64)
        gray = np.rint(values / 257).astype(np.uint8)
        picture = PIL.Image.fromarray(gray)
    return picture.convert("L" if channels == 1 else "RGB")


def _resize(picture: Any, form: PictureForm) -> Any:
    """Returns a picture of the model's size."""
    import PIL.Image

    filters = {
        "bilinear": PIL.Image.Resampling.BILINEAR,
        "bicubic": PIL.Image.Resampling.BICUBIC,
    }
    resampling = filters[form.resampling]
    size = (form.width, form.height)
    if form.shortest_side is None:
        return picture if picture.size == size else picture.resize(size, resampling)

    # Both sides keep their ratio; the longer one is rounded down.
    shorter = min(picture.size)
    width, height = (int(form.shortest_side * side / shorter) for side in picture.size)
    scaled = picture.resize((width, height), resampling)

    left = (width - form.width) // 2
    top = (height - form.height) // 2
    return scaled.crop((left, top, left + form.width, top + form.height))
