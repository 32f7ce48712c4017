"""Gated positional self-attention (d'Ascoli et al. 2021), which can begin as a convolution."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float

from jaxformer.errors import UserError
from jaxformer.nn.attention import MultiHeadAttention
from jaxformer.nn.keys import Keys
from jaxformer.nn.matmul import project
from jaxformer.nn.parameters import parameter

_FEATURES = 3  # of an offset: to the right, down, and the square of the distance


class GatedPositionalAttention(MultiHeadAttention):
    """Attention on a grid of patches, by their content and by their offsets.

    The weights of a head are (1 - sigma(gate)) softmax(Q K^T / sqrt(d_k)) + sigma(gate)
    softmax(P r), with r = (x, y, x^2 + y^2) of each offset from a query to a key. At first, each
    head attends most to another patch among the neighbors that a convolution sees, and W^V is the
    identity: the attention is a convolution.

    Departs from the paper: it attends by offsets, too.

    Attributes:
      grid: Rows and columns of the patches.
      locality: Initial sharpness of the attention to the neighbor, alpha.
    """

    fields_read = frozenset(
        {
            "num_heads",
            "d_k",
            "d_v",
            "use_bias",
            "dropout_rate",
            "compute_dtype",
            "grid",
            "locality",
        }
    )

    grid: tuple[int, int] = (1, 1)
    locality: float = 1.0

    def attend(
        self,
        x: Float[Array, "B T D"],
        keys: Keys,
        memory: Any = None,
        *,
        cache: Any = None,
        dropout: Any = None,
    ) -> tuple[Float[Array, "B T D"], None]:
        """Attends from each patch to all; arguments as for ``MultiHeadAttention.attend``."""
        rows, columns = self.grid
        rules = [*keys.rules()]
        if memory is not None or cache is not None or rules or x.shape[1] != rows * columns:
            given = ", ".join(rules) or f"{x.shape[1]} patches"
            raise UserError(
                f"GatedPositionalAttention: expected {rows * columns} patches without rules, a "
                f"memory or a cache: got {given}"
            )

        weights = self._projections(x.shape[-1])
        queries = self._queries(x, weights).astype(jnp.float32)
        key_values = self._key_values(x, weights)
        scores = jnp.einsum("bthk,bshk->bhts", queries, key_values.keys.astype(jnp.float32))
        content = jax.nn.softmax(scores / math.sqrt(queries.shape[-1]), axis=-1)

        gates, positional = self.by_position()  # [H], [H, T, T]
        gates = gates[:, None, None]
        mixed = (1 - gates) * content + gates * positional
        self.sow("intermediates", "weights", mixed)

        drop = self.dropout.row_dropout(dropout)
        kept = mixed if drop is None else drop(mixed)
        values = key_values.values
        heads = jnp.einsum("bhts,bshv->bthv", kept.astype(values.dtype), values)
        joined = heads.reshape(*x.shape[:2], -1)
        return project(joined, *weights.output, self.compute_dtype), None

    @nn.compact
    def by_position(self) -> tuple[Float[Array, " H"], Float[Array, "H T T"]]:
        """Returns sigma of the gate of each head, and its weights by offsets."""
        heads = self.num_heads
        matrix = parameter(self, "position", self._init_positions, (_FEATURES, heads))
        # The bias adds the same number to all scores of a head, and is not trained: its gradient is
        # zero but for rounding. Published weights have it.
        bias = parameter(self, "position_bias", nn.initializers.zeros, (heads,))
        gate = parameter(self, "gate", nn.initializers.ones, (heads,))

        bias = jax.lax.stop_gradient(bias)
        scores = offsets(self.grid) @ matrix + bias  # [T, T, H]
        weights = jax.nn.softmax(jnp.moveaxis(scores, -1, 0), axis=-1)
        return jax.nn.sigmoid(gate), weights

    @nn.nowrap
    def _init_positions(self, key: Any, shape: tuple[int, ...], dtype: Any) -> Array:
        """Returns P with which each head attends to another neighbor."""
        columns = [(2 * right, 2 * down, -1.0) for right, down in neighbors(self.num_heads)]
        return self.locality * jnp.array(columns, dtype).T

    def _matrix(
        self,
        name: str,
        shape: tuple[int, ...],
        axes: tuple[str | None, ...],
        gain: float = 1.0,
    ) -> Any:
        if name != "value":
            return super()._matrix(name, shape, axes, gain)

        def identity(key: Any, shape: tuple[int, ...], dtype: Any) -> Array:
            width, heads, size = shape
            return jnp.eye(width, heads * size, dtype=dtype).reshape(shape)

        return parameter(self, name, identity, shape, axes=axes, role="matrix")


def neighbors(num_heads: int) -> list[tuple[float, float]]:
    """Returns the offsets to the right and down of the neighbors that heads attend to at first.

    They are the places of a square kernel around its center.
    >>> neighbors(4)
    [(-0.5, -0.5), (0.5, -0.5), (-0.5, 0.5), (0.5, 0.5)]
    """
    side = math.isqrt(num_heads)
    if side**2 != num_heads:
        raise UserError(
            f"expected a number of heads that is a square, for the places of a kernel: got "
            f"{num_heads}"
        )

    center = (side - 1) / 2
    places = np.arange(side) - center
    return [(float(right), float(down)) for down in places for right in places]


def offsets(grid: tuple[int, int]) -> Float[np.ndarray, "T T 3"]:
    """Returns x, y and x^2 + y^2 of the offset from each patch of a grid to each other."""
    rows, columns = grid
    number = np.arange(rows * columns)
    y, x = np.divmod(number, columns)
    right = x[None, :] - x[:, None]
    down = y[None, :] - y[:, None]
    return np.stack([right, down, right**2 + down**2], axis=-1).astype(np.float32)
