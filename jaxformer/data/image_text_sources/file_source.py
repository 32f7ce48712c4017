"""Files of pictures with texts: ``data.corpus=image_text`` and ``captions``."""

from jaxformer.data.image_texts import ImageTexts, ImageTextSource
from jaxformer.data.images import read_picture_arrays
from jaxformer.errors import UserError
from jaxformer.files import local_path


def _read(name: str) -> ImageTexts:
    """Reads the arrays ``images`` and ``texts`` of a file."""
    path = local_path(name)
    images, others = read_picture_arrays(path, {"texts": "strings [N]"})

    texts = others["texts"]
    if texts.dtype.kind != "U" or texts.shape != (len(images),):
        raise UserError(
            f"{path}: expected texts, strings [{len(images)}], got {texts.dtype} "
            f"{list(texts.shape)}"
        )
    return ImageTexts(images, texts.tolist())


FILES = ImageTextSource("image_text", 10, _read)
CAPTIONS = ImageTextSource("captions", 50, _read)
