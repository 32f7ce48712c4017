"""The format ``bergamot`` of ``jaxformer export``."""

import pathlib
from typing import TYPE_CHECKING

from jaxformer.interop.systems import ExportFormat

if TYPE_CHECKING:
    from jaxformer.inference.weights import TrainedModel
    from jaxformer.interop.formats import Usage


def _write(model: "TrainedModel", folder: pathlib.Path) -> "Usage":
    from jaxformer.interop.bergamot import exporter

    return exporter.write(model, folder)


FORMAT = ExportFormat(
    name="bergamot",
    help="a student in int8, for Firefox",
    place=40,
    stores="int8",
    write=_write,
)
