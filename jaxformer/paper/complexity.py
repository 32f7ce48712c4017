"""Table 1: complexity and maximum path length of four types of layers.

All values omit constant factors, as the O(...) of the paper do.
"""

import math
from typing import NamedTuple


class Complexity(NamedTuple):
    """A row of Table 1.

    Attributes:
      operations: Operations per layer.
      sequential: Minimum number of sequential operations.
      path: Maximum path length between any two positions, in layers (recurrent: in steps).
    """

    operations: float
    sequential: float
    path: float


def self_attention(n: int, d: int) -> Complexity:
    """Self-attention over n positions of width d (Table 1, row 1).

    >>> self_attention(n=100, d=512)
    Complexity(operations=5120000, sequential=1, path=1)
    """
    return Complexity(n * n * d, 1, 1)


def recurrent(n: int, d: int) -> Complexity:
    """A recurrent layer (Table 1, row 2)."""
    return Complexity(n * d * d, n, n)


def convolutional(n: int, d: int, k: int) -> Complexity:
    """Dilated convolutions of kernel width k, each reaching k times as far (Table 1, row 3)."""
    return Complexity(k * n * d * d, 1, math.log(n, k))


def restricted_self_attention(n: int, d: int, r: int) -> Complexity:
    """Self-attention restricted to a neighborhood of r positions (Table 1, row 4)."""
    return Complexity(r * n * d, 1, n / r)
