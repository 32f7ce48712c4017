"""Attention within the windows of a grid, which may be shifted (Liu et al. 2021, Swin)."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float, Int

from jaxformer.errors import UserError
from jaxformer.nn.attention import MultiHeadAttention
from jaxformer.nn.block import Block
from jaxformer.nn.keys import Keys


class WindowAttention(MultiHeadAttention):
    """Self-attention of the tokens of a grid, row by row, to the tokens of their square window.

    Time and memory are proportional to the number of tokens. Windows that are shifted begin at
    ``shift`` instead of 0 along both sides. Those that reach beyond the grid continue at its other
    end; their tokens from different ends do not see each other.

    The intermediate "weights" is [B * windows, H, T, T], of the T tokens of a window.

    Attributes:
      grid: Rows and columns, which the window must divide.
      window: Side of a window.
      shift: Rows and columns by which windows are shifted.
    """

    fields_read = frozenset(
        {
            "num_heads",
            "d_k",
            "d_v",
            "use_bias",
            "dropout_rate",
            "make_bias",
            "scale",
            "compute_dtype",
            "grid",
            "window",
            "shift",
        }
    )

    grid: tuple[int, int] = (1, 1)
    window: int = 1
    shift: int = 0

    def attend(
        self,
        x: Float[Array, "B T D"],
        keys: Keys,
        memory: Float[Array, "B S D"] | None = None,
        *,
        cache: Any = None,
        dropout: Int[Array, " B"] | None = None,
    ) -> tuple[Float[Array, "B T D"], None]:
        """Attends within windows; arguments as for :class:`MultiHeadAttention`.

        Raises:
          UserError: There is a memory, a cache, or a rule for keys, which windows do not have.
        """
        rules = [*keys.rules()]
        if memory is not None or cache is not None or rules:
            given = ", ".join(rules) or "a memory or a cache"
            raise UserError(f"WindowAttention: expected x alone, got {given}")

        rows, columns = self.grid
        batch, _, width = x.shape
        shifted = jnp.roll(
            x.reshape(batch, rows, columns, width),
            (-self.shift, -self.shift),
            axis=(1, 2),
        )
        windows = cut_windows(shifted, self.window)  # [B, W, T, D]

        # Each window becomes a row of a batch of B * W, with a segment for each region, and its own
        # row id for dropout.
        _, count, length, _ = windows.shape
        regions = None
        if self.shift:
            regions = jnp.tile(self._regions(), (batch, 1))  # [B * W, T]
        if dropout is not None:
            window_ids = dropout[:, None] * count + jnp.arange(count)  # [B, W]
            dropout = window_ids.ravel()
        attended, _ = super().attend(
            windows.reshape(batch * count, length, width),
            Keys.of_sequence(length, regions),
            dropout=dropout,
        )

        joined = join_windows(attended.reshape(windows.shape), self.grid)
        restored = jnp.roll(joined, (self.shift, self.shift), axis=(1, 2))
        return restored.reshape(x.shape), None

    @nn.nowrap
    def _regions(self) -> Int[np.ndarray, "W T"]:
        """Returns the number of the region of each token, in windows of the shifted grid.

        The last ``shift`` rows have come around from the top of the grid, and the last ``shift``
        columns from its left: four regions, from 1 to 4.
        """
        rows, columns = self.grid
        from_top = np.arange(rows) >= rows - self.shift
        from_left = np.arange(columns) >= columns - self.shift
        regions = 1 + 2 * from_top[:, None] + from_left  # [rows, columns]

        as_batch = regions[None, :, :, None]  # [B, rows, columns, D] of one row and one number
        windows = cut_windows(as_batch, self.window)
        return windows[0, :, :, 0]


class ShiftedPair(nn.Module):
    """Two blocks in sequence, the second with shifted windows; the layer of a stack of pairs."""

    plain: Block
    shifted: Block

    def __call__(
        self,
        x: Float[Array, "B T D"],
        keys: Keys | None = None,
        memory: None = None,
        *,
        dropout: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T D"]:
        """Runs both blocks; arguments as for :class:`~jaxformer.Block`."""
        x = self.plain(x, keys, memory, dropout=dropout)
        return self.shifted(x, keys, memory, dropout=dropout)


def cut_windows(x: Any, window: int) -> Any:
    """Cuts a grid into square windows: [B, rows, columns, D] to [B, W, T, D]."""
    batch, rows, columns, width = x.shape
    down = rows // window
    right = columns // window
    split = x.reshape(batch, down, window, right, window, width)
    by_window = split.swapaxes(2, 3)  # [B, down, right, window, window, D]
    return by_window.reshape(batch, down * right, window * window, width)


def join_windows(windows: Any, grid: tuple[int, int]) -> Any:
    """Joins windows to a grid; the inverse of :func:`cut_windows`."""
    rows, columns = grid
    batch, _, length, width = windows.shape
    window = round(length**0.5)
    down = rows // window
    right = columns // window
    by_window = windows.reshape(batch, down, right, window, window, width)
    by_row = by_window.swapaxes(2, 3)  # [B, down, window, right, window, D]
    return by_row.reshape(batch, rows, columns, width)
