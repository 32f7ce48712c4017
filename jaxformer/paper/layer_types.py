"""The four types of layers of Table 1, as plain functions to be measured.

Without what all of them could have around it: no output projection, residual sum or layer norm,
and in attention no projection of queries, keys and values either, which the table leaves out.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxformer.nn.kernels import dot_product_attention


def self_attention(x: Float[Array, "B N D"], *, num_heads: int) -> Float[Array, "B N D"]:
    """Every position attends to all: O(n^2 d)."""
    heads = _split(x, num_heads)
    mask = jnp.ones((1, 1, 1, x.shape[1]), bool)
    return dot_product_attention(heads, heads, heads, mask)[0].reshape(x.shape)


def restricted_self_attention(
    x: Float[Array, "B N D"], *, num_heads: int, neighborhood: int
) -> Float[Array, "B N D"]:
    """Every position attends to the ``neighborhood`` positions centerd on it: O(r n d).

    In blocks of half a neighborhood: a block looks at itself and the two beside it, so that
    scores are computed for 1.5 r keys a query, however long the sequence is.

    Args:
      x: Queries, keys and values in one.
      num_heads: Heads, which divide D.
      neighborhood: r, an odd number; near the ends fewer positions are there.

    Raises:
      ValueError: The neighborhood is even or not positive.
    """
    if neighborhood < 1 or neighborhood % 2 == 0:
        raise ValueError(f"neighborhood must be odd, to have a center: got {neighborhood}")
    batch, length, width = x.shape
    half = neighborhood // 2
    size = max(1, half)
    blocks = -(-length // size)
    padded = jnp.pad(x, [(0, 0), (size, blocks * size - length + size), (0, 0)])
    # [B, blocks + 2, size, D], with an empty block before and one after.
    parts = padded.reshape(batch, blocks + 2, size, width)
    near = jnp.concatenate([parts[:, :-2], parts[:, 1:-1], parts[:, 2:]], axis=2)
    query = size * jnp.arange(blocks)[:, None] + jnp.arange(size)
    key = size * (jnp.arange(blocks)[:, None] - 1) + jnp.arange(3 * size)
    seen = abs(query[:, :, None] - key[:, None]) <= half
    seen &= ((key >= 0) & (key < length))[:, None]
    queries = _split(parts[:, 1:-1].reshape(-1, size, width), num_heads)
    keys = _split(near.reshape(-1, 3 * size, width), num_heads)
    mask = jnp.tile(seen[:, None], (batch, 1, 1, 1))
    attended = dot_product_attention(queries, keys, keys, mask)[0]
    return attended.reshape(batch, blocks * size, width)[:, :length]


def recurrent(
    x: Float[Array, "B N D"], inputs: Float[Array, "D D"], state: Float[Array, "D D"]
) -> Float[Array, "B N D"]:
    """h_t = tanh(x_t W + h_(t-1) U): O(n d^2), n steps one after the other."""

    def step(h: Float[Array, "B D"], x_t: Float[Array, "B D"]):
        h = jnp.tanh(x_t + h @ state)
        return h, h

    projected = jnp.swapaxes(x @ inputs, 0, 1)
    return jnp.swapaxes(jax.lax.scan(step, jnp.zeros_like(projected[0]), projected)[1], 0, 1)


def convolutional(x: Float[Array, "B N D"], kernel: Float[Array, "k D D"]) -> Float[Array, "B N D"]:
    """A full convolution of width k over positions, zeros beyond the ends: O(k n d^2)."""
    return jax.lax.conv_general_dilated(
        x, kernel, window_strides=(1,), padding="SAME", dimension_numbers=("NWC", "WIO", "NWC")
    )


def _split(x: Float[Array, "B N D"], num_heads: int) -> Float[Array, "B N H K"]:
    return x.reshape(*x.shape[:2], num_heads, -1)
