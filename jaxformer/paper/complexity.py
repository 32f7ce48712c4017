"""Table 1: what a layer costs, and how far signals travel in it, for four types of layers.

Each is the argument of an O(...): constant factors are left out, as in the paper.
"""

import math
from typing import NamedTuple


class Complexity(NamedTuple):
    """A row of Table 1.

    Attributes:
      operations: Per layer.
      sequential: Operations that must wait for one another.
      path: Longest path of a signal between any two positions, in layers (recurrent: in steps).
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
    """A convolution of kernel width k, dilated so that layers reach k times as far each (row 3)."""
    return Complexity(k * n * d * d, 1, math.log(n, k))


def restricted_self_attention(n: int, d: int, r: int) -> Complexity:
    """Self-attention that sees a neighborhood of r positions (row 4)."""
    return Complexity(r * n * d, 1, n / r)
