"""Positional encodings: sinusoidal (section 3.5) and rotary."""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from jaxformer.errors import UserError
from jaxformer.nn.precision import at_least_float32


def sinusoidal_positions(
    length: int, d_model: int, dtype: DTypeLike = np.float32
) -> Float[np.ndarray, "T D"]:
    """Returns the sinusoids of section 3.5, sine and cosine interleaved.

    PE(pos, 2i) = sin(pos / 10000^(2i/d_model)); PE(pos, 2i+1) = cos(pos / 10000^(2i/d_model)).
    They are computed in float64, so that distant positions are as exact as near ones.

    >>> sinusoidal_positions(2, 2).round(4).tolist()
    [[0.0, 1.0], [0.8414999842643738, 0.5403000116348267]]

    Args:
      length: Number of positions, T.
      d_model: Width of the embeddings, even.
      dtype: Dtype of the result.

    Raises:
      UserError: ``d_model`` is odd or not positive, or ``length`` is negative.
    """
    if d_model < 1 or d_model % 2:
        raise UserError(
            "d_model must be even, since sinusoidal positions are sine and cosine pairs: got "
            f"{d_model}; use {max(2, d_model + 1)}"
        )
    if length < 0:
        raise UserError(f"length must be 0 or more: got {length}")
    frequencies = 10_000.0 ** (-np.arange(0, d_model, 2) / d_model)
    angles = np.arange(length)[:, None] * frequencies
    pairs = np.stack([np.sin(angles), np.cos(angles)], axis=-1)
    return pairs.reshape(length, d_model).astype(dtype)


def no_positions(length: int, d_model: int) -> Float[np.ndarray, "T D"]:
    """Returns zeros, for models whose layers encode positions."""
    return np.zeros((length, d_model), np.float32)


@dataclasses.dataclass(frozen=True)
class FixedPositions:
    """A table of encodings that is computed as far as it is used.

    ``max_length`` may be much longer than any sequence, and its table larger than the memory. A
    call with explicit positions, as for packed rows, uses the whole table.

    Attributes:
      encode: Computes the first encodings, such as :func:`sinusoidal_positions`.
      length: Number of positions.
      d_model: Width of an encoding.
    """

    encode: Callable[[int, int], np.ndarray]
    length: int
    d_model: int

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, positions: slice) -> Float[np.ndarray, "T D"]:
        """Returns the encodings ``[:stop]``."""
        return self.encode(len(range(self.length)[positions]), self.d_model)


def rotary_positions(
    heads: Float[Array, "B T H K"], positions: Int[Array, "#B T"]
) -> Float[Array, "B T H K"]:
    """Rotates queries or keys by angles proportional to their positions (Su et al. 2021, RoFormer).

    Entries i and i + K/2 are a point in the plane, rotated by the angle pos / 10000^(2i/K). The dot
    product of a query and a key then depends only on the distance between them.

    >>> rotary_positions(jnp.array([[[[1.0, 0.0]]]]), jnp.array([[1]])).round(4).tolist()
    [[[[0.5403000116348267, 0.8414999842643738]]]]

    Args:
      heads: Queries or keys; K is even.
      positions: Position of each token in its sequence, from 0.

    Raises:
      UserError: K is odd.
    """
    size = heads.shape[-1]
    if size % 2:
        raise UserError(f"rotary positions: expected an even size of a head, d_k, got {size}")
    frequencies = 10_000.0 ** (-np.arange(0, size, 2) / size)
    dtype = at_least_float32(heads)
    angles = positions[:, :, None, None].astype(dtype) * frequencies.astype(dtype)[None, None, None]
    sine, cosine = jnp.sin(angles), jnp.cos(angles)
    x, y = jnp.split(heads.astype(dtype), 2, axis=-1)
    rotated = jnp.concatenate([x * cosine - y * sine, x * sine + y * cosine], axis=-1)
    return rotated.astype(heads.dtype)
