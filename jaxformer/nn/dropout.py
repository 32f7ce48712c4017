"""Dropout whose mask does not depend on how the batch is split over devices or micro-batches.

``jax.random`` takes longer to generate random bits than a small model's matrix multiplications.
Here the bits are a hash of (key, row, index in the row), cheap enough to fuse.
"""

import math
from typing import Any, TypeAlias

import flax.struct
import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int, UInt32

from jaxformer.errors import UserError

# Index of each row in the global batch; None for 0, 1, ...
RowIds: TypeAlias = Int[Array, " B"] | None


@flax.struct.dataclass
class RowDropout:
    """Dropout as a pure function of a seed and the index of each row in the global batch."""

    seed: UInt32[Array, "2"]
    row_ids: Int[Array, " B"]
    rate: float = flax.struct.field(pytree_node=False)

    def __call__(self, x: Float[Array, "B ..."]) -> Float[Array, "B ..."]:
        """Zeroes elements of x and scales the rest."""
        # Of the 2^32 values of the bits, a fraction ``rate`` is below this one.
        largest = 2**32 - 1
        least = jnp.uint32(min(round(self.rate * 2**32), largest))
        bits = random_bits(self.seed, self.row_ids, x.shape[1:])
        keep = bits >= least

        keep_rate = 1.0 - self.rate
        scaled = x / keep_rate
        return jnp.where(keep, scaled, 0).astype(x.dtype)


class Dropout(nn.Module):
    """Residual dropout (section 5.4): zeroes elements and scales the rest by 1 / (1 - rate).

    Attributes:
      rate: Probability that an element is zeroed, P_drop.
    """

    rate: float

    def __call__(
        self, x: Float[Array, "B ..."], dropout: Int[Array, " B"] | None = None
    ) -> Float[Array, "B ..."]:
        """Drops elements of x.

        ``dropout`` is the index of each row in the global batch, which turns dropout on and needs
        ``rngs={"dropout": key}``; None returns x unchanged.
        """
        drop = self.row_dropout(dropout)
        return x if drop is None else drop(x)

    @nn.compact
    def row_dropout(self, dropout: Int[Array, " B"] | None) -> RowDropout | None:
        """Returns the dropout that :meth:`__call__` applies; None if it changes nothing."""
        if not 0 <= self.rate < 1:
            raise UserError(f"Dropout: expected rate to be 0 or more and below 1, got {self.rate}")
        if dropout is None or self.rate == 0.0:
            return None

        seed = jax.random.bits(self.make_rng("dropout"), (2,), jnp.uint32)
        return RowDropout(seed, dropout, self.rate)


def dropout_rows(
    batch: Any,
    deterministic: bool,
    row_ids: RowIds,
) -> Int[Array, " B"] | None:
    """Returns the argument ``dropout`` of layers: the index of each row; None turns dropout off.

    The size of the batch is symbolic in an export.
    """
    if deterministic:
        return None
    return jnp.arange(batch) if row_ids is None else row_ids


def random_bits(
    seed: UInt32[Array, "2"],
    row_ids: Int[Array, " B"],
    shape: tuple[int, ...],
) -> UInt32[Array, "B ..."]:
    """Returns uniform bits as a pure function of the seed, the row id and the index in the row.

    Each row has two 32-bit keys, and each index goes through two rounds of an avalanching hash. The
    second key must not be the hash of a near neighbor of the first key. Otherwise rows are biased,
    by seven standard deviations in one case, which the tests of this module detect.
    """
    ids = row_ids.astype(jnp.uint32)
    row_key = _mix(ids ^ seed[0])
    row_key = _mix(row_key ^ seed[1])

    # The keys of each row, [B, 1, ...]. The constant is 2^32 divided by the golden ratio.
    ones = (1,) * len(shape)
    first = row_key.reshape(-1, *ones)
    second = _mix(first + jnp.uint32(0x9E3779B9))

    size = math.prod(shape)
    index = jnp.arange(size, dtype=jnp.uint32)
    index = index.reshape(1, *shape)
    bits = _mix(index ^ first)  # [B, ...]
    return _mix(bits ^ second)


def _mix(x: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """Hashes 32-bit words bijectively, by Chris Wellons' "lowbias32" (public domain)."""
    x = x ^ (x >> 16)
    x = x * jnp.uint32(0x7FEB352D)
    x = x ^ (x >> 15)
    x = x * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)
