"""Positions of the patches of a picture, on a grid."""

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float, Int

from jaxformer.layout import take_rows
from jaxformer.nn.keys import Bias
from jaxformer.nn.parameters import parameter


class GridBias(nn.Module):
    """Relative positions on a grid: a learned bias for each head and offset (Liu et al. 2021).

    Tokens are the places of the grid, row by row, maybe after a class token (Bao et al. 2022). The
    table has a row for each offset of the query from the key, in reading order, and then the rows
    from the class token to others, from others to the class token, and from the class token to
    itself.

    Attributes:
      num_heads: Number of heads.
      grid: Rows and columns.
      has_class_token: The first token is a class token.
    """

    num_heads: int
    grid: tuple[int, int]
    has_class_token: bool = False

    @nn.compact
    def __call__(self) -> Bias:
        num_rows = self._num_offsets
        if self.has_class_token:
            num_rows += 3
        normal = nn.initializers.normal(0.02)
        shape = (num_rows, self.num_heads)
        table = parameter(self, "table", normal, shape)

        def bias(
            queries: Int[Array, "#B T"],
            keys: Int[Array, "#B S"],
        ) -> Float[Array, "#B H T S"]:
            rows = self.table_rows(queries[:, :, None], keys[:, None])  # [B, T, S]
            biases = take_rows(table, rows)  # [B, T, S, H]
            return jnp.moveaxis(biases, -1, 1)

        return bias

    @property
    def _num_offsets(self) -> int:
        rows, columns = self.grid
        num_down = 2 * rows - 1
        num_right = 2 * columns - 1
        return num_down * num_right

    @nn.nowrap
    def table_rows(
        self,
        queries: Int[Array, "*#pairs"],
        keys: Int[Array, "*#pairs"],
    ) -> Int[Array, "*pairs"]:
        """Returns the row of the table for each pair of positions of a query and a key."""
        rows, columns = self.grid
        first = 1 if self.has_class_token else 0
        query = queries - first
        key = keys - first

        # Offsets are from 1 - rows and 1 - columns on; the numbers of rows, from 0 on.
        down = query // columns - key // columns + rows - 1
        right = query % columns - key % columns + columns - 1
        numbers = down * (2 * columns - 1) + right
        if not self.has_class_token:
            return numbers

        count = self._num_offsets
        of_class_token = jnp.where(key < 0, count + 2, count)
        of_patch = jnp.where(key < 0, count + 1, numbers)
        return jnp.where(query < 0, of_class_token, of_patch)


def resize_grid(
    table: Float[Array, "S D"],
    old: tuple[int, int],
    new: tuple[int, int],
) -> Float[Array, "T D"]:
    """Interpolates vectors on a grid, in reading order, with cubic convolution as in PyTorch.

    Neither ``jax.image.resize`` nor Pillow has its coefficient, -0.75.
    """
    old_rows, old_columns = old
    new_rows, new_columns = new
    vectors = table.reshape(old_rows, old_columns, -1)

    # The weights of rows and of columns are separable.
    down = _cubic_weights(old_rows, new_rows)
    right = _cubic_weights(old_columns, new_columns)
    resized = jnp.einsum(
        "yi,xj,ijd->yxd",
        jnp.asarray(down, table.dtype),
        jnp.asarray(right, table.dtype),
        vectors,
    )
    return resized.reshape(new_rows * new_columns, -1)


def _cubic_weights(old: int, new: int) -> Float[np.ndarray, "N O"]:
    """Returns the weight of each old place for each new one (Keys 1981)."""
    centers = (np.arange(new) + 0.5) * old / new - 0.5
    lowest = np.floor(centers).astype(int)

    weights = np.zeros((new, old))
    rows = np.arange(new)
    for step in range(-1, 3):
        places = lowest + step
        distances = abs(centers - places)
        # Beyond the border, its vectors are repeated.
        seen = np.clip(places, 0, old - 1)
        np.add.at(weights, (rows, seen), _cubic(distances))
    return weights


def _cubic(x: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    """Returns the kernel of cubic convolution, for distances of at most 2."""
    a = -0.75
    near = (a + 2) * x**3 - (a + 3) * x**2 + 1
    far = a * (x**3 - 5 * x**2 + 8 * x - 4)
    return np.where(x <= 1, near, far)
