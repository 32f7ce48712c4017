"""Caches of step functions, and how beam search reorders them.

A cache is any pytree. Arrays with leading axes ``[B, N]`` belong to the N hypotheses of each of B
sentences and are reordered with them. Arrays with leading axes ``[B, 1]``, such as cross-attention
keys, are shared by the hypotheses of a sentence, and scalars by all hypotheses. Neither is ever
copied or reordered.
"""

from typing import Any

import jax
from jaxtyping import Array, Int

from jaxformer.errors import UserError


def check_cache(cache: Any, batch_size: Any, beam_size: int) -> None:
    """Checks the leading axes of all arrays of a cache.

    Raises:
      UserError: Names the leaf, the axes it must have and its shape.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(cache):
        if leaf.ndim and leaf.shape[:2] not in [(batch_size, beam_size), (batch_size, 1)]:
            raise UserError(
                f"cache{jax.tree_util.keystr(path)} must lead with axes [batch, beams] = "
                f"[{batch_size}, {beam_size}], with [{batch_size}, 1] if the beams share it, or be "
                f"a scalar: got shape {leaf.shape}"
            )


def gather_beams(array: Array, beams: Int[Array, "B M"]) -> Array:
    """Returns ``array[b, beams[b, m]]`` for every b and m: [B, N, ...] to [B, M, ...]."""
    return jax.vmap(lambda rows, index: rows.at[index].get(mode="promise_in_bounds"))(array, beams)


def reorder_cache(cache: Any, parents: Int[Array, "B N"]) -> Any:
    """Returns the cache with the arrays of each alive hypothesis taken from its parent.

    Arrays that the hypotheses of a sentence share stay in place; with one hypothesis, all arrays
    do.
    """

    def reorder(leaf: Array) -> Array:
        shared = leaf.ndim == 0 or leaf.shape[1] == 1
        return leaf if shared else gather_beams(leaf, parents)

    return jax.tree.map(reorder, cache)
