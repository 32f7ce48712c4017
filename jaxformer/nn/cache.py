"""Caches of keys and values for decoding. Only this module knows their memory layout.

A layer hands its new keys and values to a cache and gets attended values back. Keys and values stay
in the slot they were written to: a position, and the beam that wrote there. When a search reorders
hypotheses, only :attr:`Slots.beam_slots` changes, one table for all layers of a decoder.

By the convention of :mod:`jaxformer.search.beam_cache`, arrays have leading axes [B, N], or [B, 1]
if the beams of a sentence share them. M is the capacity in positions, P = M * N the number of
slots.
"""

import dataclasses
from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxformer.layout import expand_like, zeros_beside
from jaxformer.nn.kernels import cached_attention, dot_product_attention


def capacity_for(length: int) -> int:
    """Returns the capacity of a cache for ``length`` positions, a multiple of 16.

    Multiples fill vector registers: on CPUs, XLA's sums over 15 or 30 positions take ten times as
    long.
    """
    return -(-length // 16) * 16


def _grow(leaf: Array, axis: int, length: int) -> Array:
    missing = max(0, capacity_for(length) - leaf.shape[axis])
    return jnp.pad(leaf, [(0, missing if i == axis else 0) for i in range(leaf.ndim)])


@flax.struct.dataclass
class Slots:
    """The slots that hold each beam's tokens, and the position of the next tokens.

    Attributes:
      beam_slots: Ancestry of each beam: the beam, 0 to N - 1, that wrote its token at every
        position, int32.
      length: Number of filled positions, int32.
      is_prompt: True during prefill, when all beams of a sentence share the tokens: activations are
        then [B, T, D] with T tokens of a prompt, instead of [B, N, D] with one new token per beam.
    """

    beam_slots: Int[Array, "B N M"]
    length: Int[Array, ""]
    is_prompt: bool = flax.struct.field(pytree_node=False, default=False)

    @classmethod
    def empty(cls, like: Int[Array, " B"], num_beams: int, length: int) -> "Slots":
        """Returns slots for ``length`` positions, with the layout of ``like`` on a mesh."""
        beam_slots = zeros_beside(like, (num_beams, capacity_for(length)), jnp.int32)
        return cls(beam_slots, jnp.zeros((), jnp.int32))

    def positions(self, tokens: int) -> Int[Array, "1 T"]:
        """Returns the positions of new tokens: consecutive in a prompt, otherwise all the same."""
        steps = jnp.arange(tokens, dtype=jnp.int32) if self.is_prompt else jnp.zeros(tokens, int)
        return (self.length + steps.astype(jnp.int32))[None]

    def add_position(self) -> "Slots":
        """Returns the slots after each beam takes its own slot at the next position."""
        beams = jnp.arange(self.beam_slots.shape[1], dtype=jnp.int32)[None, :, None]
        own = self.beam_slots[:, :, :1] * 0 + beams
        beam_slots = jax.lax.dynamic_update_slice_in_dim(self.beam_slots, own, self.length, axis=2)
        return dataclasses.replace(self, beam_slots=beam_slots)

    def visible(self) -> Bool[Array, "B 1 N P"]:
        """Returns the mask of each beam's own slots, including the slot at ``length``."""
        batch, beams, capacity = self.beam_slots.shape
        filled = jnp.arange(capacity, dtype=jnp.int32) <= self.length
        slots = self.beam_slots[..., None]
        own = slots == expand_like(jnp.arange(beams, dtype=jnp.int32), slots)
        own &= expand_like(filled[:, None], slots)
        return own.reshape(batch, beams, -1)[:, None]

    def grow(self, length: int) -> "Slots":
        """Returns the slots with capacity for at least ``length`` positions."""
        return dataclasses.replace(self, beam_slots=_grow(self.beam_slots, 2, length))


class KVCache(NamedTuple):
    """Cached keys and values of one self-attention layer.

    Attributes:
      keys: Keys by position, M, and by the beam that wrote them, N.
      values: Values by position and beam.
    """

    keys: Float[Array, "B 1 H K M N"]
    values: Float[Array, "B 1 H M N V"]

    @classmethod
    def empty(
        cls, slots: Slots, num_heads: int, d_k: int, d_v: int, dtype: jnp.dtype | str
    ) -> "KVCache":
        """Returns an empty cache with capacity for all slots."""
        rows, (_, beams, capacity) = slots.beam_slots[:, 0, 0], slots.beam_slots.shape
        return cls(
            zeros_beside(rows, (1, num_heads, d_k, capacity, beams), dtype),
            zeros_beside(rows, (1, num_heads, capacity, beams, d_v), dtype),
        )

    def append(
        self, keys: Float[Array, "B T H K"], values: Float[Array, "B T H V"], slots: Slots
    ) -> "KVCache":
        """Returns the cache with keys and values of new tokens written at ``slots.length``."""
        keys, values = jnp.moveaxis(keys, 1, -1)[:, None], jnp.moveaxis(values, 1, 2)[:, None]
        if slots.is_prompt:  # T positions of beam 0.
            keys, values = keys[..., None], values[..., None, :]
        else:  # One position of T beams.
            keys, values = keys[..., None, :], values[:, :, :, None]
        update = jax.lax.dynamic_update_slice_in_dim
        return KVCache(
            update(self.keys, keys, slots.length, axis=4),
            update(self.values, values, slots.length, axis=3),
        )

    def attend(
        self, queries: Float[Array, "B T H K"], mask: Bool[Array, "#B #H #T _"], slots: Slots
    ) -> Float[Array, "B T H V"]:
        """Returns attended values; queries also attend to the tokens just appended.

        Args:
          queries: Queries of one new token per beam, T = N; during prefill, of the tokens of the
            prompt.
          mask: True where a query may attend: over the slots, [B, 1, N, P]; during prefill, which
            must come first, over the prompt itself, [1 or B, 1, T, T].
          slots: The slots that the tokens were written to.
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
        """Returns the cache with capacity for at least ``length`` positions."""
        return KVCache(_grow(self.keys, 4, length), _grow(self.values, 3, length))


class MemoryCache(NamedTuple):
    """Cached keys and values of a memory, which the beams of a sentence share.

    Attributes:
      keys: Keys; the position is the last axis.
      values: Values; the position is the second-to-last axis.
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
        """Returns attended values for one new token per beam, or for the tokens of a prompt."""
        keys, values = self.keys[:, 0], self.values[:, 0]
        if slots.is_prompt:
            keys, values = jnp.moveaxis(keys, -1, 1), jnp.moveaxis(values, 2, 1)
            return dot_product_attention(queries, keys, values, mask)[0]
        return cached_attention(queries, keys, values, mask[:, 0])

    def grow(self, length: int) -> "MemoryCache":
        """Returns the cache unchanged, because a memory does not grow."""
        return self
