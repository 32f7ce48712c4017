"""Named arrays of another system, with checks of names, shapes and dtypes."""

import pathlib
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from jaxformer.errors import UserError, needs_package
from jaxformer.files import readable

_FLOATS = {"F16", "BF16", "F32", "F64"}


class Linear(NamedTuple):
    """Parameters of PyTorch's ``nn.Linear``, transposed to compute ``x @ kernel + bias``."""

    kernel: Float[np.ndarray, "in out"]
    bias: Float[np.ndarray, " out"]


class NamedArrays:
    """Arrays by name, checked, cast to float32 and permuted to our order of indices.

    Axes are letters: ``array("fc1.weight", "FD")`` checks the sizes of F and D and permutes both
    axes by their ``orders``. A renumbered vocabulary, or features in another order, is thus
    declared once for all arrays.

    Attributes:
      place: Origin of the arrays, for error messages.
    """

    def __init__(
        self,
        arrays: Mapping[str, np.ndarray],
        *,
        sizes: Mapping[str, int],
        orders: Mapping[str, Int[np.ndarray, " indices"]],
        place: str,
    ) -> None:
        """Initializes the collection.

        Args:
          arrays: The arrays by name.
          sizes: Size of each axis in ``arrays``.
          orders: Permutations of axes: the old index at each new index. Other axes are unchanged.
          place: Origin of the arrays, for error messages.
        """
        self._arrays = arrays
        self._sizes = sizes
        self._orders = orders
        self.place = place
        self._unread = set(arrays)

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def array(self, name: str, axes: str) -> Float[np.ndarray, "..."]:
        """Returns an array, float32, with its axes permuted.

        Args:
          name: Name of the array.
          axes: Letters of its axes.

        Raises:
          UserError: There is no such array, or its shape differs.
        """
        expected = tuple(self._sizes[axis] for axis in axes)
        if name not in self._arrays:
            raise UserError(f"{self.place}: expected an array {name} of shape {expected}: none")
        array = self._arrays[name]
        if array.shape != expected:
            raise UserError(
                f"{self.place}: expected {name} to have shape {expected}: got {array.shape}"
            )
        self._unread.discard(name)
        array = array.astype(np.float32)
        for i, axis in enumerate(axes):
            if axis in self._orders:
                array = array.take(self._orders[axis], axis=i)
        return array

    def linear(self, name: str, axes: str) -> Linear:
        """Returns a linear layer, given the axes [out, in] of its weight; see :meth:`array`."""
        return Linear(self.array(f"{name}.weight", axes).T, self.array(f"{name}.bias", axes[0]))

    def norm(self, name: str) -> dict[str, Float[np.ndarray, " D"]]:
        """Returns the parameters of a layer norm; see :meth:`array`."""
        return {"scale": self.array(f"{name}.weight", "D"), "bias": self.array(f"{name}.bias", "D")}

    def skip(self, name: str) -> None:
        """Exempts an array, which need not exist, from :meth:`check_all_read`."""
        self._unread.discard(name)

    def check_all_read(self) -> None:
        """Checks that every array was read, since a model without one would differ.

        Raises:
          UserError: An array was not read.
        """
        if self._unread:
            name, others = min(self._unread), len(self._unread) - 1
            raise UserError(
                f"{self.place}: jaxformer's Transformer has no place for {name}"
                f"{f' and {others} more' if others else ''}"
            )


def read_safetensors(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Reads all arrays of a safetensors file.

    Raises:
      UserError: The file cannot be read, is damaged or holds arrays that are not floats, or the
        package safetensors is missing.
    """
    with needs_package("safetensors", "which reads the weights of other systems"):
        import safetensors
    try:
        with readable(path), safetensors.safe_open(path, framework="numpy") as file:
            names = list(file.keys())
            for name in names:
                if (dtype := file.get_slice(name).get_dtype()) not in _FLOATS:
                    raise UserError(f"{path}: expected {name} to be of floats: got {dtype}")
            return {name: file.get_tensor(name) for name in names}
    except safetensors.SafetensorError as error:
        raise UserError(f"{path}: expected a safetensors file: {error}") from None


def read_torch(path: pathlib.Path) -> dict[str, Float[np.ndarray, "..."]]:
    """Reads a state dictionary that ``torch.save`` wrote, such as pytorch_model.bin, as float32.

    Such a file has a pickle, which is a program. PyTorch reads it with ``weights_only=True``, which
    refuses everything but tensors and plain containers.

    Raises:
      UserError: The file cannot be read, is damaged or holds something other than tensors of
        floats, or the package torch is missing.
    """
    with needs_package(
        "torch", "which reads pytorch_model.bin; model.safetensors needs no PyTorch"
    ):
        import torch
    try:
        with readable(path):
            # pyright takes torch.py beside this file for the package.
            state = torch.load(path, map_location="cpu", weights_only=True)  # pyright: ignore
        return {name: tensor.float().numpy() for name, tensor in state.items()}
    except UserError:
        raise
    except Exception as error:  # torch.load has no base class of its own for damaged files.
        raise UserError(
            f"{path}: expected a dictionary of tensors, as torch.save writes it: "
            f"{str(error).partition(chr(10))[0]}"
        ) from None
