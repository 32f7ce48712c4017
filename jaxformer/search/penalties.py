"""Length penalties: divisors of log probabilities, which otherwise favor short hypotheses.

The penalty of ``n`` tokens, end of sentence included, is:

- "gnmt": ``((5 + n) / 6) ** alpha``, Wu et al. (2016), equation 14; section 6.1 of the paper.
- "power": ``n ** alpha``, as in Marian, fairseq and Hugging Face; 1 for the empty hypothesis.
- "none": 1 for any alpha.

No penalty decreases with the length, which makes early stopping exact.
"""

from typing import Any, Literal, TypeAlias, TypeVar, cast

import jax
import numpy as np
from jaxtyping import Float

Penalty: TypeAlias = Literal["gnmt", "power", "none"]
Length = TypeVar("Length", float, np.ndarray, jax.Array, list)


def gnmt_penalty(length: Length, alpha: float | jax.Array) -> Length:
    """Returns the length penalty of Wu et al. (2016), equation 14 (section 6.1 of the paper).

    ``((5 + length) / 6) ** alpha``: 1 for a single token, and 1 for any length when alpha is 0.

    >>> gnmt_penalty(1, alpha=0.6)
    1.0
    >>> gnmt_penalty(7, alpha=1.0)
    2.0

    Args:
      length: Number of tokens of the hypothesis, end of sentence included: a number, or an array or
        list of any shape, which gives an array.
      alpha: Strength; the paper uses 0.6.
    """
    values: Any = np.asarray(length) if isinstance(length, list) else length
    penalty = ((5.0 + values) / 6.0) ** alpha
    return cast(Length, penalty)


def length_penalties(penalty: Penalty, alpha: float, max_length: int) -> Float[np.ndarray, " L"]:
    """Returns the penalties of 0 to ``max_length`` tokens; float64 inside keeps them growing."""
    lengths = np.arange(max_length + 1, dtype=np.float64)
    if penalty == "none":
        values = np.ones_like(lengths)
    elif penalty == "power":
        # The empty hypothesis has the penalty 1.
        values = np.maximum(lengths, 1.0) ** alpha
    else:
        values = gnmt_penalty(lengths, alpha)
    return values.astype(np.float32)
