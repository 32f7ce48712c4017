"""The keys that queries may attend to (section 3.2.3), and the positions of both.

:class:`Keys` is a structure and not an array: attention computes masks from it where it needs
them, for all scores or a chunk. For decoding, :class:`~jaxformer.nn.cache.Slots` creates it.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterator, Set
from typing import Any, ClassVar

import flax.struct
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxformer.fields import fields_given
from jaxformer.nn.block_pattern import BlockPattern

# Maps positions of queries and of keys to a bias of the scores.
Bias = Callable[[Int[Array, "#B T"], Int[Array, "#B S"]], Float[Array, "#B #H T S"]]
# Fields of Keys and Tokens that are no rules: all layers have tokens, and may have a cache.
_NO_RULES = {"queries", "keys", "slots", "index", "positions"}


@flax.struct.dataclass
class Tokens:
    """The tokens of a row, which may be several packed sequences."""

    index: Int[Array, "... T"]  # in the row; causal masks and windows compare it
    positions: Int[Array, "... T"]  # in the sequence; positional encodings use them
    # n on the n-th sequence, 0 on padding; None if each row is one sequence without padding
    segments: Int[Array, "... T"] | None = None

    @classmethod
    def of(
        cls,
        length: Any,
        segments: Int[Array, "... T"] | None = None,
        positions: Int[Array, "... T"] | None = None,
    ) -> "Tokens":
        """Returns ``length`` tokens, whose positions are 0, 1, ... when None."""
        index = jnp.arange(length, dtype=jnp.int32)[None]
        if positions is None:
            positions = index
        return cls(index, positions, segments)


@flax.struct.dataclass
class Keys:
    """Rules for the keys that each query may attend to.

    Attributes:
      queries: Tokens of the queries.
      keys: Tokens of the keys.
      mask: True where a query may attend, in addition to the other rules; everywhere when None.
      slots: The slots of a cache that new keys and values are written to; None without a cache.
      causal: Hides later keys, which preserves the auto-regressive property.
      window: Hides keys that are further away than this; None hides none.
      global_tokens: Number of first tokens of a row that see all tokens, and that all tokens see,
        despite the window.
      blocks: BigBird's pattern, by which a query sees blocks of keys; None hides none.
      bias: Added to the scores; None adds nothing.
      scale: Multiplies the dot products; 1 / sqrt(d_k) when None.
      soft_cap: Bounds the scaled scores smoothly, to soft_cap * tanh(scores / soft_cap), before the
        bias (Gemma 2); None leaves them as they are.
      masking: Names of the rules that :meth:`allowed` follows; not a field. Attention follows these
        rules of a subclass, too, which adds its own to them.
    """

    queries: Tokens
    keys: Tokens
    mask: Bool[Array, "... #H #T #S"] | None = None
    slots: Any = None
    causal: bool = flax.struct.field(pytree_node=False, default=False)
    window: int | None = flax.struct.field(pytree_node=False, default=None)
    global_tokens: int = flax.struct.field(pytree_node=False, default=0)
    blocks: BlockPattern | None = None
    bias: Bias | None = flax.struct.field(pytree_node=False, default=None)
    scale: float | None = flax.struct.field(pytree_node=False, default=None)
    soft_cap: float | None = flax.struct.field(pytree_node=False, default=None)

    masking: ClassVar[Set[str]] = {"mask", "segments", "causal", "window", "global_tokens"}

    @classmethod
    def of_sequence(
        cls,
        length: Any,
        segments: Int[Array, "#B T"] | None = None,
        positions: Int[Array, "#B T"] | None = None,
        **rules: Any,
    ) -> "Keys":
        """Returns the keys of self-attention.

        >>> Keys.of_sequence(3, causal=True).allowed()[0, 0].astype(int).tolist()
        [[1, 0, 0], [1, 1, 0], [1, 1, 1]]

        For Longformer (Beltagy et al. 2020): ``Keys.of_sequence(n, window=256, global_tokens=1)``.

        The length is symbolic in an export for any length. Without segments, all tokens see each
        other; positions are 0, 1, ... when None. The rules are other fields of :class:`Keys`.
        """
        tokens = Tokens.of(length, segments, positions)
        return cls(tokens, tokens, **rules)

    @classmethod
    def of_memory(
        cls,
        segments: Int[Array, "B T"],
        memory_segments: Int[Array, "B S"],
    ) -> "Keys":
        """Returns the keys of a memory, visible to queries by :func:`segment_mask`."""
        length = segments.shape[1]
        memory_length = memory_segments.shape[1]

        queries = Tokens.of(length, segments)
        keys = Tokens.of(memory_length, memory_segments)
        return cls(queries, keys)

    def within(self, distance: Int[Array, ""]) -> "Keys":
        """Returns keys that are also hidden beyond a distance, an array, in the mask.

        Layers that share a program have it in place of a window, which is a number: attention
        chooses its implementation by that.
        """
        query = self.queries.index[:, None, :, None]  # [B, 1, T, 1]
        key = self.keys.index[:, None, None]  # [B, 1, 1, S]
        visible = abs(query - key) <= distance
        mask = visible if self.mask is None else self.mask & visible
        return dataclasses.replace(self, mask=mask)

    def rules(self) -> Iterator[str]:
        """Yields the names of all rules that are given; a layer refuses those that it lacks.

        Rules are the fields of :class:`Keys`, and the segments of tokens.
        """
        for part in (self, self.queries, self.keys):
            for name in fields_given(part):
                if name not in _NO_RULES:
                    yield name

    def allowed(self) -> Bool[Array, "#B #H #T #S"] | None:
        """Returns the mask, True where a query may attend; None if it may attend everywhere."""
        query = self.queries.index[:, None, :, None]  # [B, 1, T, 1]
        key = self.keys.index[:, None, None]  # [B, 1, 1, S]

        masks = []
        if self.mask is not None:
            masks.append(self.mask)
        if self.queries.segments is not None or self.keys.segments is not None:
            masks.append(self._same_segment())
        if self.causal:
            masks.append(key <= query)
        if self.window is not None:
            # Distances are in tokens of the row, in both directions.
            visible = abs(query - key) <= self.window
            if self.global_tokens:
                sees_all = query < self.global_tokens
                seen_by_all = key < self.global_tokens
                visible |= sees_all | seen_by_all
            masks.append(visible)

        return functools.reduce(operator.and_, masks) if masks else None

    def _same_segment(self) -> Bool[Array, "#B 1 T S"]:
        ours = self.queries.segments
        theirs = self.keys.segments
        # Without segments, a row is one sequence.
        if ours is None:
            ours = jnp.ones_like(self.queries.index)
        if theirs is None:
            theirs = jnp.ones_like(self.keys.index)
        return segment_mask(ours, theirs)


def segment_mask(
    query_segments: Int[Array, "B T"], key_segments: Int[Array, "B S"]
) -> Bool[Array, "B 1 T S"]:
    """Returns a mask that lets tokens attend to their own segment only, and not to padding.

    Segment 0 is padding; 1, 2, ... number the sentence pairs packed into one row. With one pair per
    row this is the usual padding mask.

    >>> segment_mask(jnp.array([[1, 2]]), jnp.array([[1, 2, 0]]))[0, 0].astype(int).tolist()
    [[1, 0, 0], [0, 1, 0]]
    """
    same = query_segments[:, :, None] == key_segments[:, None, :]  # [B, T, S]
    is_token = (key_segments != 0)[:, None, :]  # [B, 1, S]
    return (same & is_token)[:, None]


def padding_mask(tokens: Int[Array, "B T"], padding: int = 0) -> Bool[Array, "B 1 1 T"]:
    """Returns a mask that hides padding, by its token id, from all queries.

    >>> padding_mask(jnp.array([[5, 7, 0]]))[0, 0].astype(int).tolist()
    [[1, 1, 0]]
    """
    return (tokens != padding)[:, None, None]


def causal_mask(length: int) -> Bool[Array, "1 1 T T"]:
    """Returns a mask that hides later positions, which preserves the auto-regressive property."""
    everywhere = jnp.ones((length, length), bool)
    return jnp.tril(everywhere)[None, None]


@flax.struct.dataclass
class Memory:
    """The memory that cross-attention attends to.

    Attributes:
      activations: The memory; None if a cache has its keys and values.
      keys: The keys that each query may see.
    """

    activations: Float[Array, "B S D"] | None
    keys: Keys
