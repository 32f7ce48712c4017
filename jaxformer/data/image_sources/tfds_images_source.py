"""Pictures of TensorFlow Datasets: ``data.corpus=tfds_images``."""

from typing import Any

import numpy as np

from jaxformer.data.images import Images, ImagesConfig, ImageSource
from jaxformer.data.picture_files import PictureForm
from jaxformer.errors import UserError, needs_package


def _read(data: ImagesConfig, name: str, form: PictureForm | None) -> Images:
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


TFDS_IMAGES = ImageSource("tfds_images", place=30, read=_read)
