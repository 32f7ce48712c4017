"""Keys and values that decoding keeps, in layouts that only this module knows.

A layer hands its new keys and values to a cache and gets attended values back. Keys and values
stay where they were written, in a slot: a position, and the beam that wrote there. When a search
moves hypotheses, it moves :attr:`Slots.beam_slots` alone, one table for all layers of a decoder.

By the convention of :mod:`jaxformer.search.beam_cache` every array leads with [B, N], or with [B, 1]
if the beams of a sentence share it. M is the capacity in positions, P = M * N the slots.
"""

import dataclasses
from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxformer.layout import zeros_beside
from jaxformer.nn.kernels import cached_attention, dot_product_attention


def capacity_for(length: int) -> int:
    """Returns the capacity of a cache for ``length`` positions, a multiple of 16.

    Whole vector registers: XLA's sums over 15 or 30 positions take ten times as long on CPUs.
    """
    return -(-length // 16) * 16


def _grow(leaf: Array, axis: int, length: int) -> Array:
    missing = max(0, capacity_for(length) - leaf.shape[axis])
    return jnp.pad(leaf, [(0, missing if i == axis else 0) for i in range(leaf.ndim)])


@flax.struct.dataclass
class Slots:
    """The slots that hold each beam's own tokens, and where the next tokens go.

    Attributes:
      beam_slots: The beam, 0 to N - 1, that wrote a beam's own token at every position, int32.
      length: Positions that are filled, int32.
      is_prompt: True while tokens of a prompt are read, which all beams of a sentence share: then
        activations are [B, T, D], and not [B, N, D], one new token of each beam.
    """

    beam_slots: Int[Array, "B N M"]
    length: Int[Array, ""]
    is_prompt: bool = flax.struct.field(pytree_node=False, default=False)

    @classmethod
    def empty(cls, rows: Int[Array, " B"], num_beams: int, length: int) -> "Slots":
        """Returns slots for ``length`` positions; ``rows`` says how the batch lies on a mesh."""
        beam_slots = zeros_beside(rows, (num_beams, capacity_for(length)), jnp.int32)
        return cls(beam_slots, jnp.zeros((), jnp.int32))

    def positions(self, tokens: int) -> Int[Array, "1 T"]:
        """Returns the positions of new tokens: one after another in a prompt, else all the same."""
        steps = jnp.arange(tokens, dtype=jnp.int32) if self.is_prompt else jnp.zeros(tokens, int)
        return (self.length + steps.astype(jnp.int32))[None]

    def add_position(self) -> "Slots":
        """Returns the table in which each beam owns its slot at the next position."""
        beams = jnp.arange(self.beam_slots.shape[1], dtype=jnp.int32)[:, None]
        own = self.beam_slots[:, :, :1] * 0 + beams
        beam_slots = jax.lax.dynamic_update_slice_in_dim(self.beam_slots, own, self.length, axis=2)
        return dataclasses.replace(self, beam_slots=beam_slots)

    def visible(self) -> Bool[Array, "B 1 N P"]:
        """Returns the mask of a beam's own slots, the one at ``length`` included."""
        batch, beams, capacity = self.beam_slots.shape
        filled = jnp.arange(capacity) <= self.length
        own = (self.beam_slots[..., None] == jnp.arange(beams)) & filled[:, None]
        return own.reshape(batch, beams, -1)[:, None]

    def grow(self, length: int) -> "Slots":
        """Returns the table with a capacity for ``length`` positions at least."""
        return dataclasses.replace(self, beam_slots=_grow(self.beam_slots, 2, length))


class KVCache(NamedTuple):
    """Keys and values of the tokens so far, of one self-attention.

    Attributes:
      keys: By position, M, and by the beam that wrote there, N.
      values: Likewise.
    """

    keys: Float[Array, "B 1 H K M N"]
    values: Float[Array, "B 1 H M N V"]

    @classmethod
    def empty(
        cls, slots: Slots, num_heads: int, d_k: int, d_v: int, dtype: jnp.dtype | str
    ) -> "KVCache":
        """Returns a cache with nothing written, for all the slots of a table."""
        rows, (_, beams, capacity) = slots.beam_slots[:, 0, 0], slots.beam_slots.shape
        return cls(
            zeros_beside(rows, (1, num_heads, d_k, capacity, beams), dtype),
            zeros_beside(rows, (1, num_heads, capacity, beams, d_v), dtype),
        )

    def append(
        self, keys: Float[Array, "B T H K"], values: Float[Array, "B T H V"], slots: Slots
    ) -> "KVCache":
        """Returns the cache with new tokens' keys and values written at ``slots.length``."""
        keys, values = jnp.moveaxis(keys, 1, -1)[:, None], jnp.moveaxis(values, 1, 2)[:, None]
        if slots.is_prompt:  # T positions of beam 0
            keys, values = keys[..., None], values[..., None, :]
        else:  # one position of T beams
            keys, values = keys[..., None, :], values[:, :, :, None]
        update = jax.lax.dynamic_update_slice_in_dim
        return KVCache(
            update(self.keys, keys, slots.length, axis=4),
            update(self.values, values, slots.length, axis=3),
        )

    def attend(
        self, queries: Float[Array, "B T H K"], mask: Bool[Array, "#B #H #T _"], slots: Slots
    ) -> Float[Array, "B T H V"]:
        """Returns the values that queries attend to, which include the tokens just appended.

        Args:
          queries: Of one new token of each beam, T = N; of a prompt's tokens while it is read.
          mask: True where a query may attend: over the slots, [B, 1, N, P]; over the prompt itself,
            [1 or B, 1, T, T], while it is read, which must come first.
          slots: Where the tokens were written.
        """
        if slots.is_prompt:
            length = queries.shape[1]
            keys = jnp.moveaxis(self.keys[:, 0, :, :, :length, 0], -1, 1)
            values = jnp.moveaxis(self.values[:, 0, :, :length, 0], 2, 1)
            return dot_product_attention(queries, keys, values, mask)[0]
        batch, _, heads, d_k = self.keys.shape[:4]
        keys = self.keys[:, 0].reshape(batch, heads, d_k, -1)
        values = self.values[:, 0].reshape(batch, heads, -1, self.values.shape[-1])
        return cached_attention(queries, keys, values, mask[:, 0])

    def grow(self, length: int) -> "KVCache":
        """Returns the cache with a capacity for ``length`` positions at least."""
        return KVCache(_grow(self.keys, 4, length), _grow(self.values, 3, length))


class MemoryCache(NamedTuple):
    """Keys and values of a memory, projected once; the beams of a sentence share them.

    Attributes:
      keys: Positions last.
      values: Positions last but one.
    """

    keys: Float[Array, "B 1 H K S"]
    values: Float[Array, "B 1 H S V"]

    @classmethod
    def of(cls, keys: Float[Array, "B S H K"], values: Float[Array, "B S H V"]) -> "MemoryCache":
        """Returns the cache of projected keys and values."""
        return cls(jnp.moveaxis(keys, 1, -1)[:, None], jnp.moveaxis(values, 1, 2)[:, None])

    def attend(
        self, queries: Float[Array, "B T H K"], mask: Bool[Array, "#B #H #T _"], slots: Slots
    ) -> Float[Array, "B T H V"]:
        """Returns the values that one new token of each beam, or a prompt's tokens, attend to."""
        keys, values = self.keys[:, 0], self.values[:, 0]
        if slots.is_prompt:
            keys, values = jnp.moveaxis(keys, -1, 1), jnp.moveaxis(values, 2, 1)
            return dot_product_attention(queries, keys, values, mask)[0]
        return cached_attention(queries, keys, values, mask[:, 0])

    def grow(self, length: int) -> "MemoryCache":
        """Returns the cache as it is: a memory does not grow."""
        return self
