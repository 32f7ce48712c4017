"""The format ``safetensors`` of ``jaxformer export``."""

import pathlib
from typing import TYPE_CHECKING

from jaxformer.interop.systems import ExportFormat

if TYPE_CHECKING:
    from jaxformer.inference.weights import TrainedModel
    from jaxformer.interop.formats import Usage


def _write(model: "TrainedModel", folder: pathlib.Path) -> "Usage":
    from jaxformer.interop import safetensors
    from jaxformer.interop.huggingface import exporter

    # A model that transformers has is written for transformers, all others with our own names.
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
