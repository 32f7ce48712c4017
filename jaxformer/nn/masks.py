"""Attention masks. Boolean, True = may attend (section 3.2.3)."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


def segment_mask(
    query_segments: Int[Array, "B T"], key_segments: Int[Array, "B S"]
) -> Bool[Array, "B 1 T S"]:
    """Lets a token attend to the tokens of its own segment, and nothing to padding.

    Segment 0 is padding; 1, 2, ... number the sentence pairs packed into one row. With one pair a
    row this is the ordinary padding mask.

    >>> segment_mask(jnp.array([[1, 2]]), jnp.array([[1, 2, 0]]))[0, 0].astype(int).tolist()
    [[1, 0, 0], [0, 1, 0]]
    """
    same = query_segments[:, :, None] == key_segments[:, None, :]
    return (same & (key_segments != 0)[:, None, :])[:, None]


def causal_mask(length: int) -> Bool[Array, "1 1 T T"]:
    """Keeps a position from attending to later ones, which preserves auto-regression."""
    return jnp.tril(jnp.ones((length, length), bool))[None, None]
