"""The format safetensors."""

import pathlib
from typing import TYPE_CHECKING

from jaxformer.interop.systems import ExportFormat

if TYPE_CHECKING:
    from jaxformer.inference.weights import TrainedModel
    from jaxformer.interop.formats import Usage


def _write(model: "TrainedModel", folder: pathlib.Path) -> "Usage":
    from jaxformer.interop import safetensors
    from jaxformer.interop.huggingface import exporter

    # Without a foreign architecture, the names of parameters are ours.
    if exporter.can_write(model):
        return exporter.write(model, folder)
    return safetensors.write(model, folder)


FORMAT = ExportFormat(
    name="safetensors",
    help="parameters, of a model from jaxformer import hf for the transformers library",
    place=50,
    stores="float32",
    write=_write,
)
