"""Attention masks: boolean, True where a query may attend (section 3.2.3)."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


def segment_mask(
    query_segments: Int[Array, "B T"], key_segments: Int[Array, "B S"]
) -> Bool[Array, "B 1 T S"]:
    """Returns a mask that lets tokens attend to their own segment only, and not to padding.

    Segment 0 is padding; 1, 2, ... number the sentence pairs packed into one row. With one pair per
    row this is the usual padding mask.

    >>> segment_mask(jnp.array([[1, 2]]), jnp.array([[1, 2, 0]]))[0, 0].astype(int).tolist()
    [[1, 0, 0], [0, 1, 0]]

    Args:
      query_segments: Segment of each query.
      key_segments: Segment of each key.
    """
    same = query_segments[:, :, None] == key_segments[:, None, :]
    return (same & (key_segments != 0)[:, None, :])[:, None]


def causal_mask(length: Any) -> Bool[Array, "1 1 T T"]:
    """Returns a mask that hides later positions, which preserves the auto-regressive property.

    Args:
      length: Number of tokens, T; symbolic in an export for any length.
    """
    return jnp.tril(jnp.ones((length, length), bool))[None, None]
