"""The format ``ctranslate2`` of ``jaxformer export``."""

import pathlib
from typing import TYPE_CHECKING

from jaxformer.interop.systems import ExportFormat

if TYPE_CHECKING:
    from jaxformer.inference.weights import TrainedModel
    from jaxformer.interop.formats import Usage


def _write(model: "TrainedModel", folder: pathlib.Path) -> "Usage":
    from jaxformer.interop import ctranslate2

    return ctranslate2.write(model, folder)


FORMAT = ExportFormat(
    name="ctranslate2",
    help="a model for CTranslate2",
    place=20,
    stores="float32",
    write=_write,
)
