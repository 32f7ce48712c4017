"""Named arrays of another system, looked at before they are used."""

import pathlib
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from jaxformer.errors import UserError

_FLOATS = {"F16", "BF16", "F32", "F64"}


class Linear(NamedTuple):
    """PyTorch's ``nn.Linear`` as a product with ``kernel`` from the right, plus ``bias``."""

    kernel: Float[np.ndarray, "in out"]
    bias: Float[np.ndarray, " out"]


class NamedArrays:
    """Arrays by name, handed out in float32, with the axes that are expected, in our order.

    Axes are letters: ``array("fc1.weight", "FD")`` has the sizes of F and of D, and what stands
    along D is taken in the order given for D. So a renumbered vocabulary, or features in another
    order, is written down once and holds for every array.

    Attributes:
      place: Where the arrays are from, for messages.
    """

    def __init__(
        self,
        arrays: Mapping[str, np.ndarray],
        *,
        sizes: Mapping[str, int],
        orders: Mapping[str, Int[np.ndarray, " indices"]],
        place: str,
    ) -> None:
        """Takes the arrays as they are.

        Args:
          arrays: The arrays by name.
          sizes: How long each axis is in ``arrays``.
          orders: For some of the axes, which of the old indices stand where; all axes else stay.
          place: Where the arrays are from, for messages.
        """
        self._arrays = arrays
        self._sizes = sizes
        self._orders = orders
        self.place = place
        self._unread = set(arrays)

    def __contains__(self, name: str) -> bool:
        """Whether there is an array of this name."""
        return name in self._arrays

    def array(self, name: str, axes: str) -> Float[np.ndarray, "..."]:
        """The array of this name, float32.

        Raises:
          UserError: There is none, or it has other axes or no floats.
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
        """Kernel and bias of a linear layer; ``axes`` are those of its weight, [out, in].

        Raises:
          UserError: As in :meth:`array`.
        """
        return Linear(self.array(f"{name}.weight", axes).T, self.array(f"{name}.bias", axes[0]))

    def norm(self, name: str) -> dict[str, Float[np.ndarray, " D"]]:
        """Parameters of a layer norm.

        Raises:
          UserError: As in :meth:`array`.
        """
        return {"scale": self.array(f"{name}.weight", "D"), "bias": self.array(f"{name}.bias", "D")}

    def skip(self, name: str) -> None:
        """Says that an array of this name, if there is one, need not be read."""
        self._unread.discard(name)

    def check_all_read(self) -> None:
        """Makes sure that nothing was left out: the model would not be the same without it.

        Raises:
          UserError: Names an array that nobody asked for.
        """
        if self._unread:
            name, others = min(self._unread), len(self._unread) - 1
            raise UserError(
                f"{self.place}: jaxformer's Transformer has no place for {name}"
                f"{f' and {others} more' if others else ''}"
            )


def read_safetensors(path: pathlib.Path) -> dict[str, np.ndarray]:
    """All arrays of a safetensors file.

    Raises:
      UserError: The file cannot be read, is damaged or holds other than floats, or the package
        safetensors is missing.
    """
    try:
        import safetensors
    except ImportError:
        raise UserError(
            "expected the package safetensors, which reads the weights of other systems; "
            "install it: pip install safetensors"
        ) from None
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            names = list(file.keys())
            for name in names:
                if (dtype := file.get_slice(name).get_dtype()) not in _FLOATS:
                    raise UserError(f"{path}: expected {name} to be of floats: got {dtype}")
            return {name: file.get_tensor(name) for name in names}
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    except safetensors.SafetensorError as error:
        raise UserError(f"{path}: expected a safetensors file: {error}") from None
