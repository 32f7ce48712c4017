"""The format ``argos`` of ``jaxformer export``."""

import pathlib
from typing import TYPE_CHECKING

from jaxformer.interop.systems import ExportFormat

if TYPE_CHECKING:
    from jaxformer.inference.weights import TrainedModel
    from jaxformer.interop.formats import Usage


def _write(model: "TrainedModel", folder: pathlib.Path) -> "Usage":
    from jaxformer.interop import argos

    return argos.write(model, folder)


FORMAT = ExportFormat(
    name="argos",
    help="a package for Argos Translate and LibreTranslate",
    place=25,
    stores="float32",
    write=_write,
)
