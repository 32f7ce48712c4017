"""Named arrays of other systems, with checks of names, shapes and dtypes."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int

from jaxformer.errors import UserError

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
        outputs = axes[0]
        weight = self.array(f"{name}.weight", axes)
        bias = self.array(f"{name}.bias", outputs)
        return {
            ours: weight.T,
            f"{ours}_bias": bias,
        }

    def norm(self, name: str) -> Params:
        scale = self.array(f"{name}.weight", "D")
        bias = self.array(f"{name}.bias", "D")
        return {
            "scale": scale,
            "bias": bias,
        }

    def skip(self, name: str) -> None:
        """Exempts an array, which need not exist, from :meth:`check_all_read`."""
        self._unread.discard(name)

    def check_all_read(self) -> None:
        """Checks that every array was read, since ignoring one would change the model."""
        if not self._unread:
            return

        unread = min(self._unread)
        others = len(self._unread) - 1
        if others:
            unread += f" and {others} more"
        raise UserError(f"{self.place}: jaxformer's model has no place for {unread}")


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
