"""Gato's tokens of numbers (Reed et al. 2022, section 2.1 and appendix B)."""

import numpy as np
from jaxtyping import Float, Int

from jaxformer.errors import UserError

NUM_BINS = 1024  # of equal width, from -1 to 1
_MU = 100
_LARGEST = 256  # a number that becomes 1


def mu_law(values: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Compresses numbers into -1 to 1: sign(x) log(100 |x| + 1) / log(100 * 256 + 1), clipped.

    >>> mu_law(np.array([-256.0, 0.0, 256.0, 1e6])).tolist()
    [-1.0, 0.0, 1.0, 1.0]
    """
    compressed = np.log(_MU * np.abs(values) + 1) / np.log(_MU * _LARGEST + 1)
    return np.clip(np.sign(values) * compressed, -1, 1)


def to_bins(values: Float[np.ndarray, "..."]) -> Int[np.ndarray, "..."]:
    """Returns the bins of numbers from -1 to 1.

    >>> to_bins(np.array([-1.0, 0.0, 1.0])).tolist()
    [0, 512, 1023]

    Raises:
      UserError: A number is not from -1 to 1.
    """
    is_inside = np.abs(values) <= 1
    if not is_inside.all():
        outside = np.asarray(values)[~is_inside]
        raise UserError(f"expected numbers from -1 to 1, got {outside.flat[0]}")

    bins = np.floor((values + 1) / 2 * NUM_BINS)
    return np.minimum(bins, NUM_BINS - 1).astype(np.int32)
