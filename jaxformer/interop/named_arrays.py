"""Named arrays of other systems, with checks of names, shapes and dtypes."""

import dataclasses
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int

from jaxformer.errors import UserError, needs_package, prefix_errors
from jaxformer.files import explain_read_errors, open_file, read_object

NOTHING = re.compile("(?!)")  # matches no name
_FLOATS = {"F16", "BF16", "F32", "F64"}  # dtypes of safetensors

Params = dict[str, Any]


@dataclasses.dataclass(kw_only=True)
class NamedArrays:
    """Arrays by name, checked, cast to float32 and permuted to our order.

    Axes are letters: ``array("fc1.weight", "FD")`` checks the sizes of F and D and permutes both
    axes by their ``orders``. A renumbered vocabulary or another order of features is thus declared
    once for all arrays.
    """

    arrays: Mapping[str, np.ndarray]
    sizes: Mapping[str, int]  # of the axes, in the arrays
    # By axis: the index in the arrays for each index of ours; -1 gives zeros.
    orders: Mapping[str, Int[np.ndarray, " indices"]]
    place: str  # origin of the arrays, for error messages

    def __post_init__(self) -> None:
        self._unread = set(self.arrays)

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    def array(self, name: str, axes: str) -> Float[np.ndarray, "..."]:
        """Returns an array with these axes, float32 and permuted."""
        expected = tuple(self.sizes[axis] for axis in axes)
        if name not in self.arrays:
            raise UserError(f"{self.place}: expected an array {name} of shape {expected}: none")
        array = self.arrays[name]
        if array.shape != expected:
            raise UserError(
                f"{self.place}: expected {name} to have shape {expected}: got {array.shape}"
            )

        self._unread.discard(name)
        array = array.astype(np.float32)
        if np.isnan(array).any():
            raise UserError(f"{self.place}: expected numbers in {name}: got NaN")

        for number, axis in enumerate(axes):
            if axis in self.orders:
                order = self.orders[axis]
                array = array.take(order, axis=number)

                is_absent = order < 0
                axis_first = np.moveaxis(array, number, 0)  # a view
                axis_first[is_absent] = 0
        return array

    def linear(self, name: str, axes: str, ours: str) -> Params:
        """Returns PyTorch's ``nn.Linear``, whose weight has the axes [out, in], under our name."""
        kernel = self.array(f"{name}.weight", axes).T
        bias = self.array(f"{name}.bias", axes[0])
        return {ours: kernel, f"{ours}_bias": bias}

    def norm(self, name: str) -> Params:
        scale = self.array(f"{name}.weight", "D")
        bias = self.array(f"{name}.bias", "D")
        return {"scale": scale, "bias": bias}

    def skip(self, name: str) -> None:
        """Exempts an array, which need not exist, from :meth:`check_all_read`."""
        self._unread.discard(name)

    def check_all_read(self) -> None:
        """Checks that every array was read, since ignoring one would change the model."""
        if not self._unread:
            return

        name = min(self._unread)
        others = len(self._unread) - 1
        more = f" and {others} more" if others else ""
        raise UserError(f"{self.place}: jaxformer's model has no place for {name}{more}")


def split_heads(linear: Params, num_heads: int) -> Params:
    """Splits the outputs of a projection to queries, keys or values into heads."""
    result = {}
    for name, array in linear.items():
        *others, _ = array.shape
        result[name] = array.reshape(*others, num_heads, -1)
    return result


def stack(layer: Callable[[int], Params], num_layers: int) -> Params:
    """Stacks the parameters of ``layer(0)``, ``layer(1)``, ... along a new first axis."""
    layers = [layer(number) for number in range(num_layers)]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *layers)


def read_weights(
    directory: pathlib.Path,
    skip: re.Pattern[str],
    advice: str,
) -> tuple[pathlib.Path, dict[str, np.ndarray]]:
    """Reads the tensors of a model, in the first of transformers' formats that the folder has.

    Args:
      directory: Folder of the model.
      skip: Pattern of the names of tensors that are not read.
      advice: End of the message about a missing file.

    Returns:
      The file that lists the tensors, and the tensors by name.
    """
    path = directory / "model.safetensors"
    if path.is_file():
        return path, read_safetensors(path, skip)

    index = directory / "model.safetensors.index.json"
    if index.is_file():
        return index, _read_sharded(index, skip, advice)

    pickled = directory / "pytorch_model.bin"
    if pickled.is_file():
        arrays = read_torch(pickled)
        return pickled, {name: arrays[name] for name in arrays if not skip.fullmatch(name)}

    raise UserError(f"{path}: no such file; {advice}")


def _read_sharded(
    index: pathlib.Path,
    skip: re.Pattern[str],
    advice: str,
) -> dict[str, Float[np.ndarray, "..."]]:
    """Reads the tensors of several safetensors files, each in the file that the index names."""
    files = _read_index(index, advice)
    arrays = {}
    for file in sorted(set(files.values())):
        found = read_safetensors(index.parent / file, skip)
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
    files = read_object(index, advice=advice).get("weight_map")
    error = UserError(f"{index}: expected weight_map, with the name of a file for each tensor")
    if not isinstance(files, dict):
        raise error

    for name in files.values():
        if pathlib.PurePath(str(name)).name != name:
            raise error
    return files


def read_safetensors(
    path: pathlib.Path,
    skip: re.Pattern[str] = NOTHING,
) -> dict[str, np.ndarray]:
    """Reads the arrays of a safetensors file, except those whose names ``skip`` matches.

    Raises:
      UserError: The file is damaged, or an array that is read is not of floats.
    """
    with needs_package("safetensors", "which reads the weights of other systems"):
        import safetensors

    with explain_read_errors(path):
        open_file(path).close()  # Refuses other things than files, and Git LFS pointers.

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
        return {name: file.get_tensor(name) for name in names}


def read_torch(path: pathlib.Path) -> dict[str, Float[np.ndarray, "..."]]:
    """Reads a state dictionary that ``torch.save`` wrote, such as pytorch_model.bin, as float32."""
    with explain_read_errors(path):
        open_file(path).close()  # Refuses other things than files, and Git LFS pointers.

    reason = "which reads pytorch_model.bin; model.safetensors needs no PyTorch"
    with needs_package("torch", reason):
        import torch

    with explain_read_errors(path), open_file(path) as file:
        try:
            # weights_only refuses everything in a pickle except tensors and plain containers.
            # pyright mistakes interop/torch.py for the package torch.
            state = torch.load(file, map_location="cpu", weights_only=True)  # pyright: ignore
            return {name: tensor.float().numpy() for name, tensor in state.items()}

        except Exception as error:  # torch.load has no base class of its own for damaged files.
            reason = str(error).partition("\n")[0]
            raise UserError(
                f"{path}: expected a dictionary of tensors, as torch.save writes it: {reason}"
            ) from None
