"""Caches of keys and values for decoding. Only this module knows their memory layout.

A cache is a source of keys and values for :func:`~jaxformer.nn.kernels.attend`. They stay in the
slot they were written to, which a position and a beam identify. When a search reorders hypotheses,
only :attr:`Slots.beam_slots` changes, one table for all layers of a decoder. With a window, the
cache is rolling: a new position overwrites one that no query sees anymore.

By the convention of :mod:`jaxformer.search.state`, arrays have leading axes [B, N], or [B, 1] if
the beams of a sentence share them. M is the capacity in positions; there are P = M * N slots.
"""

import dataclasses
import math
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxformer.layout import expand_like, zeros_for_rows
from jaxformer.nn.kernels import KeyValues
from jaxformer.nn.keys import Bias, Keys, Tokens
from jaxformer.nn.precision import at_least_float32


def _capacity_for(length: int, beams: int, window: int | None) -> int:
    """Returns the capacity M for ``length`` positions; a window keeps only the last ones.

    The number of slots, M * beams, is a multiple of 16: on CPUs, XLA's sums over 15 or 30 take ten
    times as long.
    """
    kept = length if window is None else min(length, window + 1)
    block = 16 // math.gcd(16, beams)  # positions whose slots are a multiple of 16
    num_blocks = -(-kept // block)
    return num_blocks * block


def _pad_to(array: Array, axis: int, capacity: int) -> Array:
    missing = max(0, capacity - array.shape[axis])
    padding = [(0, 0)] * array.ndim
    padding[axis] = (0, missing)
    return jnp.pad(array, padding)


@flax.struct.dataclass
class Slots:
    """The slots that hold each beam's tokens, and the position of the next tokens.

    Attributes:
      beam_slots: Ancestry of each beam: the beam, 0 to N - 1, that wrote its token at every
        position, int32. Position p is at p modulo M.
      length: Number of positions before the next tokens, int32; during prefill, number of prompt
        tokens to keep.
      starts: Number of positions of padding before the first token of each row, int32; None for 0.
      is_prompt: True during prefill, when all beams of a sentence share the tokens: activations are
        then [B, T, D] with T tokens of a prompt, instead of [B, N, D] with one new token per beam.
      window: Distance beyond which positions are not kept; None keeps all.
    """

    beam_slots: Int[Array, "B N M"]
    length: Int[Array, ""]
    starts: Int[Array, "B 1"] | None = None
    is_prompt: bool = flax.struct.field(pytree_node=False, default=False)
    window: int | None = flax.struct.field(pytree_node=False, default=None)

    @classmethod
    def empty(
        cls,
        rows: Int[Array, " B"],
        num_beams: int,
        length: int,
        window: int | None = None,
    ) -> "Slots":
        """Returns slots for ``length`` positions, with the layout of ``rows`` on a mesh."""
        capacity = _capacity_for(length, num_beams, window)
        beam_slots = zeros_for_rows(rows, (num_beams, capacity), jnp.int32)
        no_tokens = jnp.zeros((), jnp.int32)
        return cls(beam_slots, no_tokens, window=window)

    @property
    def capacity(self) -> int:
        """Number of positions that each beam has slots for, M."""
        return self.beam_slots.shape[2]

    @property
    def is_rolling(self) -> bool:
        """True if a new position overwrites one that no query sees anymore."""
        return self.window is not None and self.capacity > self.window

    def add_position(self) -> "Slots":
        """Returns the slots after each beam takes its own slot at the next position."""
        num_beams = self.beam_slots.shape[1]
        beams = jnp.arange(num_beams, dtype=jnp.int32)[None, :, None]
        # A sum with zeros keeps the sharding of the slots.
        own = self.beam_slots[:, :, :1] * 0 + beams  # [B, N, 1]

        place = self.length % self.capacity
        beam_slots = jax.lax.dynamic_update_slice_in_dim(self.beam_slots, own, place, axis=2)
        return dataclasses.replace(self, beam_slots=beam_slots)

    def keys(self, tokens: int, bias: Bias | None = None) -> Keys:
        """Returns the keys that the new tokens may see: the prompt, or each beam's own slots.

        ``tokens`` is the number of new tokens: T for a prompt, or one per beam.
        """
        if self.is_prompt:
            return self._keys_of_prompt(tokens, bias)

        batch, beams, capacity = self.beam_slots.shape
        starts = 0 if self.starts is None else self.starts
        held = self.positions_held(self.length)[None]  # [1, M]

        # A beam sees the slots of its ancestors, from the first token of the row on.
        ancestors = self.beam_slots[..., None]
        writers = expand_like(jnp.arange(beams, dtype=jnp.int32), ancestors)
        visible = ancestors == writers  # [B, N, M, N]
        visible &= (held >= starts)[:, None, :, None]

        # The index of a token in its row counts padding, its position does not.
        query_index = jnp.broadcast_to(self.length, (1, tokens))  # [1, N]
        key_index = jnp.repeat(held, beams, axis=1)  # [1, P]
        mask = visible.reshape(batch, beams, beams * capacity)[:, None]  # [B, 1, N, P]
        return Keys(
            queries=Tokens(query_index, query_index - starts),
            keys=Tokens(key_index, key_index - starts),
            mask=mask,
            slots=self,
            window=self.window,
            bias=bias,
        )

    def _keys_of_prompt(self, tokens: int, bias: Bias | None) -> Keys:
        index = jnp.arange(tokens, dtype=jnp.int32)[None]  # [1, T]
        positions = index - (0 if self.starts is None else self.starts)

        segments = None
        if self.starts is not None:
            segments = (index >= self.starts).astype(jnp.int32)

        return Keys.of_sequence(
            tokens,
            segments,
            positions,
            causal=True,
            slots=self,
            window=self.window,
            bias=bias,
        )

    def positions_held(self, newest: Int[Array, ""]) -> Int[Array, " M"]:
        """Returns the position in each slot of a beam after ``newest``; negative in empty slots."""
        slots = jnp.arange(self.capacity, dtype=jnp.int32)
        age = (newest - slots) % self.capacity
        return newest - age

    def grow(self, length: int) -> "Slots":
        """Returns the slots with capacity for at least ``length`` positions."""
        num_beams = self.beam_slots.shape[1]
        capacity = _capacity_for(length, num_beams, self.window)
        beam_slots = _pad_to(self.beam_slots, axis=2, capacity=capacity)
        return dataclasses.replace(self, beam_slots=beam_slots)


class LayerState:
    """The decoding state of a sub-layer, a pytree, such as a cache of keys and values."""

    def grow(self, capacity: int) -> Any:
        """Returns the state with capacity for this many positions; most states do not grow."""
        return self


class _Cached(LayerState):
    """Keys [B, 1, H, K, ...] and values [B, 1, H, ..., V], which all beams of a sentence share.

    The dots stand for the axis of positions and, in self-attention, the axis of the beams that
    wrote the tokens; together, they have P entries.

    On CPUs, scores and sums are elementwise products, which read the cache once, in the order of
    its axes: a decoding step is limited by memory bandwidth.
    """

    keys: Array
    values: Array

    @property
    def num_heads(self) -> int:
        return self.keys.shape[2]

    def scores(self, queries: Float[Array, "B N H K"]) -> Float[Array, "B H N P"]:
        """Returns the dot products of one query per beam with all keys."""
        keys = jax.lax.collapse(self.keys[:, 0], 3)  # [B, H, K, P]
        dtype = at_least_float32(queries, keys)

        def sums_of_products(q: Array, k: Array) -> Array:
            q = q.astype(dtype)
            k = k.astype(dtype)
            if q.shape[1] == 1:  # With an axis of size 1, XLA would take ten times as long.
                products = q[:, 0, :, :, None] * k  # [B, H, K, P]
                return products.sum(axis=2)[:, :, None]

            products = q[..., None] * k[:, None]  # [B, N, H, K, P]
            return jnp.moveaxis(products.sum(axis=3), 1, 2)

        def matmuls(q: Array, k: Array) -> Array:
            return jnp.einsum("bnhk,bhks->bhns", q, k, preferred_element_type=dtype)

        return jax.lax.platform_dependent(
            queries,
            keys,
            cpu=sums_of_products,
            default=matmuls,
        )

    def weighted_sum(self, weights: Float[Array, "B H N P"]) -> Float[Array, "B N H V"]:
        """Returns all values, summed with weights."""
        values = jax.lax.collapse(self.values[:, 0], 2, -1)  # [B, H, P, V]
        dtype = weights.dtype

        def sums_of_products(w: Array, v: Array) -> Array:
            v = v.astype(dtype)
            if w.shape[2] == 1:  # As in scores.
                products = w[:, :, 0, :, None] * v  # [B, H, P, V]
                return products.sum(axis=2)[:, None]

            by_beam = jnp.moveaxis(w, 2, 1)  # [B, N, H, P]
            products = by_beam[..., None] * v[:, None]  # [B, N, H, P, V]
            return products.sum(axis=3)

        def matmuls(w: Array, v: Array) -> Array:
            w = w.astype(v.dtype)
            return jnp.einsum("bhns,bhsv->bnhv", w, v, preferred_element_type=dtype)

        summed = jax.lax.platform_dependent(
            weights,
            values,
            cpu=sums_of_products,
            default=matmuls,
        )
        return summed.astype(values.dtype)


@flax.struct.dataclass
class KVCache(_Cached):
    """Cached keys and values of one self-attention layer."""

    keys: Float[Array, "B 1 H K M N"]
    values: Float[Array, "B 1 H M N V"]

    @classmethod
    def empty(
        cls,
        slots: Slots,
        num_heads: int,
        d_k: int,
        d_v: int,
        dtype: str,
    ) -> "KVCache":
        """Returns an empty cache with capacity for all slots."""
        rows = slots.beam_slots[:, 0, 0]
        _, beams, capacity = slots.beam_slots.shape
        keys = zeros_for_rows(rows, (1, num_heads, d_k, capacity, beams), dtype)
        values = zeros_for_rows(rows, (1, num_heads, capacity, beams, d_v), dtype)
        return cls(keys, values)

    def append(self, new: KeyValues, slots: Slots) -> "KVCache":
        """Returns the cache with the keys and values of new tokens written to their slots."""
        if slots.is_prompt and new.keys.shape[1] > slots.capacity:  # Only its end is kept.
            newest = slots.length - 1
            kept = jnp.maximum(slots.positions_held(newest), 0)  # [M]
            new = jax.tree.map(lambda array: jnp.take(array, kept, axis=1), new)

        tokens = MemoryCache.of(new)  # in the cache's order of axes
        if slots.is_prompt:  # T positions of beam 0, whose slots all beams see.
            keys = tokens.keys[..., None]  # [B, 1, H, K, T, 1]
            values = tokens.values[..., None, :]  # [B, 1, H, T, 1, V]
            place = 0
        else:  # One position of N beams.
            keys = tokens.keys[..., None, :]  # [B, 1, H, K, 1, N]
            values = tokens.values[:, :, :, None]  # [B, 1, H, 1, N, V]
            place = slots.length % slots.capacity

        update = jax.lax.dynamic_update_slice_in_dim
        return KVCache(
            keys=update(self.keys, keys, place, axis=4),
            values=update(self.values, values, place, axis=3),
        )

    def grow(self, capacity: int) -> "KVCache":
        return KVCache(
            keys=_pad_to(self.keys, axis=4, capacity=capacity),
            values=_pad_to(self.values, axis=3, capacity=capacity),
        )


@flax.struct.dataclass
class MemoryCache(_Cached):
    """Cached keys and values of a memory, which the beams of a sentence share."""

    keys: Float[Array, "B 1 H K S"]
    values: Float[Array, "B 1 H S V"]

    @classmethod
    def of(cls, memory: KeyValues) -> "MemoryCache":
        """Returns the cache of projected keys and values."""
        keys = jnp.moveaxis(memory.keys, 1, -1)  # [B, H, K, S]
        values = jnp.moveaxis(memory.values, 1, 2)  # [B, H, S, V]
        return cls(keys[:, None], values[:, None])

    def as_key_values(self, dtype: str) -> KeyValues:
        """Returns the keys and values in the layout for the tokens of a prompt."""
        keys = jnp.moveaxis(self.keys[:, 0], -1, 1)  # [B, S, H, K]
        values = jnp.moveaxis(self.values[:, 0], 2, 1)  # [B, S, H, V]
        return KeyValues(keys, values, dtype)
