"""Models of the fixtures of families, as folders and as imported runs."""

import functools
import pathlib
import shutil
import tempfile
from typing import NamedTuple

import numpy as np
import safetensors.numpy

from jaxformer.inference.weights import TrainedModel
from jaxformer.interop.huggingface.importer import import_huggingface

from ..fixtures.random_weights import read_arrays

FAMILIES = pathlib.Path(__file__).parents[1] / "fixtures" / "families"


class Family(NamedTuple):
    folder: pathlib.Path  # in the layout of transformers
    workdir: pathlib.Path
    trained: TrainedModel
    outputs: dict[str, np.ndarray]  # of transformers


def write_model(name: str, folder: pathlib.Path) -> pathlib.Path:
    """Writes a model's files as save_pretrained does, and returns the folder."""
    shutil.copytree(FAMILIES / name, folder)
    safetensors.numpy.save_file(read_arrays(folder), folder / "model.safetensors")
    return folder


@functools.cache
def imported(name: str, languages: tuple[str, ...] = ()) -> Family:
    """Imports a model once; ``languages`` is for models of many."""
    temporary = pathlib.Path(tempfile.mkdtemp())
    folder = write_model(name, temporary / name)
    workdir = temporary / "run"
    import_huggingface(folder, workdir, languages)

    outputs = dict(np.load(folder / "outputs.npz"))
    return Family(folder, workdir, TrainedModel.load(workdir), outputs)


def relative_difference(found: np.ndarray, expected: np.ndarray) -> float:
    """Returns the largest difference, over the standard deviation of what is expected."""
    return float(np.abs(found - expected).max() / expected.std())
