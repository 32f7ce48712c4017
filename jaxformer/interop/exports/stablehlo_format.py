"""The format ``stablehlo`` of ``jaxformer export``."""

import pathlib
from typing import TYPE_CHECKING

from jaxformer.interop.systems import ExportFormat

if TYPE_CHECKING:
    from jaxformer.inference.weights import TrainedModel
    from jaxformer.interop.formats import Usage


def _write(model: "TrainedModel", folder: pathlib.Path) -> "Usage":
    from jaxformer.interop import stablehlo

    return stablehlo.write(model, folder)


FORMAT = ExportFormat(
    name="stablehlo",
    help="the whole search as a program for JAX",
    place=10,
    stores=None,
    write=_write,
)
