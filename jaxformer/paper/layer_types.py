"""The four types of layers of Table 1, as plain functions for timing.

The functions include only what the table counts: no output projection, residual connection or
layer norm, and in attention no projections of queries, keys and values.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxformer.nn.kernels import dot_product_attention


def self_attention(x: Float[Array, "B N D"], *, num_heads: int) -> Float[Array, "B N D"]:
    """Attends from every position to all positions: O(n^2 d)."""
    heads = _split_heads(x, num_heads)
    mask = jnp.ones((1, 1, 1, x.shape[1]), bool)
    return dot_product_attention(heads, heads, heads, mask)[0].reshape(x.shape)


def restricted_self_attention(
    x: Float[Array, "B N D"], *, num_heads: int, neighborhood: int
) -> Float[Array, "B N D"]:
    """Attends from every position to the ``neighborhood`` positions centered on it: O(r n d).

    The sequence is split into blocks of half a neighborhood. A block attends to itself and its two
    neighbors, so scores are computed for 1.5 r keys per query.

    Args:
      x: Input, used as queries, keys and values.
      num_heads: Number of heads, a divisor of D.
      neighborhood: r, an odd number; positions beyond the ends are masked.

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
    # [B, blocks + 2, size, D], with an empty block at each end.
    split = padded.reshape(batch, blocks + 2, size, width)
    near = jnp.concatenate([split[:, :-2], split[:, 1:-1], split[:, 2:]], axis=2)
    query = size * jnp.arange(blocks)[:, None] + jnp.arange(size)
    key = size * (jnp.arange(blocks)[:, None] - 1) + jnp.arange(3 * size)
    visible = abs(query[:, :, None] - key[:, None]) <= half
    visible &= ((key >= 0) & (key < length))[:, None]
    queries = _split_heads(split[:, 1:-1].reshape(-1, size, width), num_heads)
    keys = _split_heads(near.reshape(-1, 3 * size, width), num_heads)
    mask = jnp.tile(visible[:, None], (batch, 1, 1, 1))
    attended = dot_product_attention(queries, keys, keys, mask)[0]
    return attended.reshape(batch, blocks * size, width)[:, :length]


def recurrent(
    x: Float[Array, "B N D"], inputs: Float[Array, "D D"], state: Float[Array, "D D"]
) -> Float[Array, "B N D"]:
    """Computes h_t = tanh(x_t W + h_(t-1) U) in n sequential steps: O(n d^2)."""

    def step(h: Float[Array, "B D"], x_t: Float[Array, "B D"]):
        h = jnp.tanh(x_t + h @ state)
        return h, h

    projected = jnp.swapaxes(x @ inputs, 0, 1)
    return jnp.swapaxes(jax.lax.scan(step, jnp.zeros_like(projected[0]), projected)[1], 0, 1)


def convolutional(x: Float[Array, "B N D"], kernel: Float[Array, "k D D"]) -> Float[Array, "B N D"]:
    """Convolves positions with a kernel of width k, zero-padded at the ends: O(k n d^2)."""
    return jax.lax.conv_general_dilated(
        x, kernel, window_strides=(1,), padding="SAME", dimension_numbers=("NWC", "WIO", "NWC")
    )


def _split_heads(x: Float[Array, "B N D"], num_heads: int) -> Float[Array, "B N H K"]:
    return x.reshape(*x.shape[:2], num_heads, -1)
