"""Length penalties: what a log probability is divided by before hypotheses are compared.

A longer hypothesis is a product of more probabilities, so raw log probabilities favour short ones.
"""

from typing import TypeVar, cast

import jax
import numpy as np

Length = TypeVar("Length", float, np.ndarray, jax.Array)


def gnmt_penalty(length: Length, alpha: float) -> Length:
    """The length penalty of Wu et al. (2016), equation 14, which section 6.1 of the paper uses.

    ``((5 + length) / 6) ** alpha``: 1 for a single token, and 1 everywhere when alpha is 0.

    >>> gnmt_penalty(1, alpha=0.6)
    1.0
    >>> gnmt_penalty(7, alpha=1.0)
    2.0

    Args:
      length: Tokens of the hypothesis, end of sentence included; a number or an array of any shape.
      alpha: Strength; the paper's is 0.6.

    Returns:
      The penalty, in the shape of ``length``.
    """
    return cast(Length, ((5.0 + length) / 6.0) ** alpha)
