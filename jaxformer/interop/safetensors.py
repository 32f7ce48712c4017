"""Exports only the parameters, named by their paths in the tree."""

import json
import pathlib
from collections.abc import Mapping

import numpy as np

from jaxformer.errors import needs_package
from jaxformer.files import write_file
from jaxformer.inference.parameter_arrays import named_arrays
from jaxformer.inference.weights import TrainedModel
from jaxformer.interop.formats import Usage

_CODE = """
import safetensors.flax  # or safetensors.numpy, safetensors.torch

params = safetensors.flax.load_file("model.safetensors")
print({name: array.shape for name, array in params.items()})
"""
_NOTES = (
    "A name is the path of an array in the tree of parameters, joined by dots. Layers are stacked "
    "along the first axis.",
    "`config.json` is the config of the run. In jaxformer, `Transformer(config.model)`, or "
    "`LanguageModel(config.model)` and so on, takes "
    '`{"params": flax.traverse_util.unflatten_dict(params, sep=".")}`.',
    "`tokenizer.model` is the tokenizer: a SentencePiece model, or JSON with the two SentencePiece "
    "models of an imported Marian model and its pieces, or with one and options of Moses' scripts.",
)


def write(model: TrainedModel, folder: pathlib.Path) -> Usage:
    """Writes model.safetensors, config.json and tokenizer.model, if there is one."""
    save_arrays(named_arrays(model.params), folder / "model.safetensors")

    config = json.dumps(model.config.to_dict(), indent=2) + "\n"
    write_file(folder / "config.json", config.encode())

    notes = _NOTES[:2]
    tokenizer = model.tokenizer_file
    if tokenizer is not None:
        write_file(folder / "tokenizer.model", tokenizer)
        notes = _NOTES
    return Usage(
        format="safetensors",
        requires="safetensors",
        code=_CODE,
        notes=notes,
        remark="with jaxformer's own names of the parameters, which transformers does not read",
    )


def save_arrays(arrays: Mapping[str, np.ndarray], path: pathlib.Path) -> None:
    """Writes a safetensors file, with the metadata that transformers expects."""
    with needs_package("safetensors", "which writes this format"):
        from safetensors.numpy import save as serialize

    # Unlike ascontiguousarray, this keeps the shape of a single number.
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    write_file(path, serialize(contiguous, metadata={"format": "pt"}))
