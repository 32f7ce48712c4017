"""The four types of layers of Table 1, as plain functions for timing.

The functions include only what the table counts: no output projection, residual connection or
layer norm, and in attention no projections of queries, keys and values.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxformer.nn.kernels import KeyValues, dot_product_attention, windowed_attention
from jaxformer.nn.keys import Keys


def self_attention(x: Float[Array, "B N D"], *, num_heads: int) -> Float[Array, "B N D"]:
    """Attends from every position to all positions: O(n^2 d)."""
    heads = _split_heads(x, num_heads)
    attended, _ = dot_product_attention(heads, heads, heads)
    return attended.reshape(x.shape)


def restricted_self_attention(
    x: Float[Array, "B N D"],
    *,
    num_heads: int,
    neighborhood: int,
) -> Float[Array, "B N D"]:
    """Attends to the ``neighborhood`` positions around each, masked beyond the ends: O(r n d)."""
    if neighborhood < 1 or neighborhood % 2 == 0:
        raise ValueError(f"neighborhood must be odd, to have a center: got {neighborhood}")

    heads = _split_heads(x, num_heads)
    keys = Keys.of_sequence(x.shape[1], window=neighborhood // 2)
    attended = windowed_attention(heads, KeyValues(heads, heads), keys)
    return attended.reshape(x.shape)


def recurrent(
    x: Float[Array, "B N D"],
    inputs: Float[Array, "D D"],
    state: Float[Array, "D D"],
) -> Float[Array, "B N D"]:
    """Computes h_t = tanh(x_t W + h_(t-1) U) in n sequential steps: O(n d^2)."""

    def step(
        h: Float[Array, "B D"],
        x_t: Float[Array, "B D"],
    ):
        h = jnp.tanh(x_t + h @ state)
        return h, h

    # All projections in one matrix multiplication, and then step by step.
    projected = jnp.swapaxes(x @ inputs, 0, 1)  # [N, B, D]
    first = jnp.zeros_like(projected[0])
    _, states = jax.lax.scan(step, first, projected)
    return jnp.swapaxes(states, 0, 1)


def convolutional(
    x: Float[Array, "B N D"],
    kernel: Float[Array, "k D D"],
) -> Float[Array, "B N D"]:
    """Convolves positions with a kernel of width k, zero-padded at the ends: O(k n d^2)."""
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        window_strides=(1,),
        padding="SAME",
        dimension_numbers=("NWC", "WIO", "NWC"),
    )


def _split_heads(x: Float[Array, "B N D"], num_heads: int) -> Float[Array, "B N H K"]:
    batch, length = x.shape[:2]
    return x.reshape(batch, length, num_heads, -1)
