"""Gato's tokens of numbers (Reed et al. 2022, section 2.1 and appendix B)."""

from typing import Any

NUM_BINS = 1024  # of equal width, from -1 to 1
_MU = 100
_LARGEST = 256  # a number that becomes 1


def mu_law(values: Any) -> Any:
    """Compresses numbers into -1 to 1: sign(x) log(100 |x| + 1) / log(100 * 256 + 1), clipped.

    >>> import numpy as np
    >>> mu_law(np.array([-256.0, 0.0, 256.0, 1e6])).tolist()
    [-1.0, 0.0, 1.0, 1.0]

    The numbers are a floating-point array of NumPy or JAX, as in :func:`to_bins`.
    """
    xp = values.__array_namespace__()
    scale = xp.log(xp.asarray(_MU * _LARGEST + 1.0, dtype=values.dtype))
    compressed = xp.log(_MU * xp.abs(values) + 1) / scale
    return xp.clip(xp.sign(values) * compressed, -1, 1)


def to_bins(values: Any) -> Any:
    """Returns the bins of numbers from -1 to 1, int32.

    >>> import numpy as np
    >>> to_bins(np.array([-1.0, 0.0, 1.0])).tolist()
    [0, 512, 1023]
    """
    xp = values.__array_namespace__()
    bins = xp.floor((values + 1) / 2 * NUM_BINS)
    return xp.clip(bins, 0, NUM_BINS - 1).astype("int32")
