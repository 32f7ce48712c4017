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
_FLOATS = {"F16", "BF16", "F32", "F64"}


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
    # the old index at each new index of an axis; -1 gives zeros
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
        for i, axis in enumerate(axes):
            if axis in self.orders:
                array = array.take(self.orders[axis], axis=i)
                array[(slice(None),) * i + (self.orders[axis] < 0,)] = 0
        return array

    def linear(self, name: str, axes: str, ours: str) -> Params:
        """Returns PyTorch's ``nn.Linear``, whose weight has the axes [out, in], under our name."""
        kernel, bias = self.array(f"{name}.weight", axes).T, self.array(f"{name}.bias", axes[0])
        return {ours: kernel, f"{ours}_bias": bias}

    def norm(self, name: str) -> Params:
        return {"scale": self.array(f"{name}.weight", "D"), "bias": self.array(f"{name}.bias", "D")}

    def skip(self, name: str) -> None:
        """Exempts an array, which need not exist, from :meth:`check_all_read`."""
        self._unread.discard(name)

    def check_all_read(self) -> None:
        """Checks that every array was read, since ignoring one would change the model."""
        if self._unread:
            name, others = min(self._unread), len(self._unread) - 1
            raise UserError(
                f"{self.place}: jaxformer's model has no place for {name}"
                f"{f' and {others} more' if others else ''}"
            )


def split_heads(linear: Params, num_heads: int) -> Params:
    """Splits the outputs of a projection to queries, keys or values into heads."""
    return {name: array.reshape(*array.shape[:-1], num_heads, -1) for name, array in linear.items()}


def stack(layer: Callable[[int], Params], num_layers: int) -> Params:
    """Stacks the parameters of ``layer(0)``, ``layer(1)``, ... along a new first axis."""
    layers = [layer(number) for number in range(num_layers)]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *layers)


def read_weights(
    directory: pathlib.Path, skip: re.Pattern[str], advice: str
) -> tuple[pathlib.Path, dict[str, np.ndarray]]:
    """Returns the file that lists a model's tensors, and those that ``skip`` does not match."""
    path, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    pickled = directory / "pytorch_model.bin"
    if path.is_file():
        return path, read_safetensors(path, skip)
    if pickled.is_file() and not index.is_file():
        arrays = read_torch(pickled)
        return pickled, {n: array for n, array in arrays.items() if not skip.fullmatch(n)}
    if not index.is_file():
        raise UserError(f"{path}: no such file; {advice}")
    files = read_object(index, advice=advice).get("weight_map")
    if not isinstance(files, dict) or any(
        pathlib.PurePath(str(n)).name != n for n in files.values()
    ):
        raise UserError(f"{index}: expected weight_map, with the name of a file for each tensor")
    arrays = {}
    for file in sorted(set(files.values())):
        for name, array in read_safetensors(directory / file, skip).items():
            if files.get(name) != file:
                raise UserError(f"{index}: expected {name} to be in {file}, where it is")
            arrays[name] = array
    missing = sorted(n for n in files if n not in arrays and not skip.fullmatch(n))
    if missing:
        raise UserError(f"{index}: expected {missing[0]} in {files[missing[0]]}, but it is not")
    return index, arrays


def read_safetensors(path: pathlib.Path, skip: re.Pattern[str] = NOTHING) -> dict[str, np.ndarray]:
    """Reads the arrays of a safetensors file, which must be floats; ``skip`` matches others."""
    with needs_package("safetensors", "which reads the weights of other systems"):
        import safetensors
    with explain_read_errors(path):
        open_file(path).close()  # Refuses other things than files, and Git LFS pointers.
    with (
        prefix_errors(f"{path}: expected a safetensors file", safetensors.SafetensorError),
        explain_read_errors(path),
        safetensors.safe_open(path, framework="numpy") as file,
    ):
        names = [n for n in list(file.keys()) if not skip.fullmatch(n)]
        for name in names:
            if (dtype := file.get_slice(name).get_dtype()) not in _FLOATS:
                raise UserError(f"{path}: expected {name} to be of floats: got {dtype}")
        return {name: file.get_tensor(name) for name in names}


def read_torch(path: pathlib.Path) -> dict[str, Float[np.ndarray, "..."]]:
    """Reads a state dictionary that ``torch.save`` wrote, such as pytorch_model.bin, as float32."""
    with explain_read_errors(path):
        open_file(path).close()  # Refuses other things than files, and Git LFS pointers.
    with needs_package(
        "torch", "which reads pytorch_model.bin; model.safetensors needs no PyTorch"
    ):
        import torch
    with explain_read_errors(path), open_file(path) as file:
        try:
            # weights_only refuses everything in a pickle except tensors and plain containers.
            # pyright mistakes interop/torch.py for the package.
            state = torch.load(file, map_location="cpu", weights_only=True)  # pyright: ignore
            return {name: tensor.float().numpy() for name, tensor in state.items()}
        except Exception as error:  # torch.load has no base class of its own for damaged files.
            reason = str(error).partition("\n")[0]
            raise UserError(
                f"{path}: expected a dictionary of tensors, as torch.save writes it: {reason}"
            ) from None
