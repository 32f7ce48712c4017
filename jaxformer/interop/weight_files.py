"""Reads the files with the tensors of a model, in the formats that transformers has saved.

All of them are untrusted: arrays are read, and nothing else.
"""

import pathlib
import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from jaxformer.errors import UserError, needs_package, prefix_errors
from jaxformer.files import explain_read_errors, open_file, read_object
from jaxformer.interop.flax_arrays import pytorch_name, read_flax, to_pytorch

NOTHING = re.compile("(?!)")  # matches no name
_FLOATS = {"F16", "BF16", "F32", "F64"}  # dtypes of safetensors

Arrays = dict[str, np.ndarray]


class WeightFormat(NamedTuple):
    """A format of files with tensors.

    Attributes:
      file: Name of the file, if there is one; several have an index, ``file`` with .index.json.
      parts: Pattern of the names of several files, as of the shell.
      read: Returns the arrays of a file by PyTorch's names, except those that a pattern matches.
      name_of: Returns PyTorch's name of an array, given its name in an index.
    """

    file: str
    parts: str
    read: Callable[[pathlib.Path, re.Pattern[str]], Arrays]
    name_of: Callable[[str], str] = str

    @property
    def index(self) -> str:
        return f"{self.file}.index.json"


def read_weights(
    directory: pathlib.Path,
    skip: re.Pattern[str],
    advice: str,
) -> tuple[pathlib.Path, Arrays]:
    """Reads the tensors of a model, in the first format of :data:`FORMATS` that the folder has.

    Args:
      directory: Folder of the model.
      skip: Pattern of the names of tensors that are not read.
      advice: End of the message about a missing file.

    Returns:
      The file that lists the tensors, and the tensors by name.
    """
    for each in FORMATS:
        path = directory / each.file
        if path.is_file():
            return path, each.read(path, skip)

        index = directory / each.index
        if index.is_file():
            return index, _read_sharded(index, each, skip=skip, advice=advice)

    raise UserError(f"{directory / FORMATS[0].file}: no such file; {advice}")


def _read_sharded(
    index: pathlib.Path,
    format: WeightFormat,
    *,
    skip: re.Pattern[str],
    advice: str,
) -> Arrays:
    """Reads the tensors of several files, each in the file that the index names."""
    files = {}
    for name, file in _read_index(index, advice).items():
        own_name = format.name_of(name)
        files[own_name] = file

    arrays = {}
    for file in sorted(set(files.values())):
        found = format.read(index.parent / file, skip)
        for name, array in found.items():
            if files.get(name) != file:
                raise UserError(f"{index}: expected {name} to be in {file}, where it is")
            arrays[name] = array

    for name in sorted(files.keys() - arrays.keys()):
        if not skip.fullmatch(name):
            raise UserError(f"{index}: expected {name} in {files[name]}, but it is not")
    return arrays


def _read_index(index: pathlib.Path, advice: str) -> dict[str, str]:
    """Returns the name of the file of each tensor; refuses names with a folder."""
    fields = read_object(index, advice=advice)
    files = fields.get("weight_map")
    error = UserError(f"{index}: expected weight_map, with the name of a file for each tensor")
    if not isinstance(files, dict):
        raise error

    for name in files.values():
        path = pathlib.PurePath(str(name))
        if path.name != name:
            raise error
    return files


def read_safetensors(path: pathlib.Path, skip: re.Pattern[str] = NOTHING) -> Arrays:
    """Reads the arrays of a safetensors file, except those whose names ``skip`` matches.

    Raises:
      UserError: The file is damaged, or an array that is read is not of floats.
    """
    with needs_package("safetensors", "which reads the weights of other systems"):
        import safetensors

    _check_file(path)
    with (
        prefix_errors(f"{path}: expected a safetensors file", safetensors.SafetensorError),
        explain_read_errors(path),
        safetensors.safe_open(path, framework="numpy") as file,
    ):
        names = [name for name in list(file.keys()) if not skip.fullmatch(name)]
        for name in names:
            dtype = file.get_slice(name).get_dtype()
            if dtype not in _FLOATS:
                raise UserError(f"{path}: expected {name} to be of floats: got {dtype}")
        arrays = {name: file.get_tensor(name) for name in names}

        # Flax models of transformers 4 may be saved so, too.
        metadata = file.metadata() or {}
        if metadata.get("format") != "flax":
            return arrays
        with prefix_errors(str(path)):
            return to_pytorch(arrays)


def read_torch(path: pathlib.Path, skip: re.Pattern[str] = NOTHING) -> Arrays:
    """Reads a state dictionary that ``torch.save`` wrote, such as pytorch_model.bin, as float32."""
    _check_file(path)

    reason = "which reads pytorch_model.bin; model.safetensors needs no PyTorch"
    with needs_package("torch", reason):
        import torch

    with explain_read_errors(path), open_file(path) as file:
        try:
            # weights_only refuses everything in a pickle except tensors and plain containers.
            # pyright mistakes interop/torch.py for the package torch.
            state = torch.load(file, map_location="cpu", weights_only=True)  # pyright: ignore
            arrays = {}
            for name, tensor in state.items():
                if not skip.fullmatch(name):
                    arrays[name] = tensor.float().numpy()
            return arrays

        except Exception as error:  # torch.load has no base class of its own for damaged files.
            reason = str(error).partition("\n")[0]
            raise UserError(
                f"{path}: expected a dictionary of tensors, as torch.save writes it: {reason}"
            ) from None


def _check_file(path: pathlib.Path) -> None:
    """Refuses other things than files, and Git LFS pointers, before a library opens the path."""
    with explain_read_errors(path):
        open_file(path).close()


# In the order in which they are tried; only the last one needs PyTorch.
FORMATS = (
    WeightFormat("model.safetensors", "model-*.safetensors", read_safetensors),
    WeightFormat("flax_model.msgpack", "flax_model-*.msgpack", read_flax, pytorch_name),
    WeightFormat("pytorch_model.bin", "pytorch_model-*.bin", read_torch),
)


def _download_groups() -> tuple[tuple[str, ...], ...]:
    """Returns one file, or an index and its files, for each format in turn."""
    groups: list[tuple[str, ...]] = []
    for each in FORMATS:
        groups.append((each.file,))
        groups.append((each.index, each.parts))
    return tuple(groups)


# The groups of files that a download tries; see hub.ModelFiles.
WEIGHTS = _download_groups()
