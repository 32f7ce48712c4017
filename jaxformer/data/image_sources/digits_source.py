"""The 1,797 handwritten digits of scikit-learn: ``data.corpus=digits``."""

from typing import Any

import numpy as np

from jaxformer.data.images import Images, ImagesConfig, ImageSource
from jaxformer.data.picture_files import PictureForm
from jaxformer.errors import UserError, needs_package


def _read(data: ImagesConfig, name: str, form: PictureForm | None) -> Images:
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


DIGITS = ImageSource("digits", place=20, read=_read)
