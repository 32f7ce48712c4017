"""Caches of step functions, and how they follow the hypotheses.

A cache is any pytree. Arrays that lead with axes ``[B, N]`` belong to the N hypotheses of each
of B sentences and move with them; arrays that lead with ``[B, 1]`` are shared by the hypotheses of
a sentence, such as cross-attention keys, and scalars by all: neither is ever copied or reordered.
"""

from typing import Any

import jax
from jaxtyping import Array, Int

from jaxformer.errors import UserError


def check_cache(cache: Any, batch_size: Any, beam_size: int) -> None:
    """Refuses a cache with leading axes that the search would not know what to do with.

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
    """Returns the cache with each alive hypothesis' arrays taken from its parent.

    Arrays that a sentence's hypotheses share, so all of them when there is one, stay in place.
    """

    def reorder(leaf: Array) -> Array:
        shared = leaf.ndim == 0 or leaf.shape[1] == 1
        return leaf if shared else gather_beams(leaf, parents)

    return jax.tree.map(reorder, cache)
