"""The format ``marian`` of ``jaxformer export``."""

import pathlib
from typing import TYPE_CHECKING

from jaxformer.interop.systems import ExportFormat

if TYPE_CHECKING:
    from jaxformer.inference.weights import TrainedModel
    from jaxformer.interop.formats import Usage


def _write(model: "TrainedModel", folder: pathlib.Path) -> "Usage":
    from jaxformer.interop.marian import exporter

    return exporter.write(model, folder)


FORMAT = ExportFormat(
    name="marian",
    help="MarianMTModel of the transformers library",
    place=30,
    stores="float32",
    write=_write,
)
