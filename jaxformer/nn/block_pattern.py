"""The blocks of keys that each block of queries sees in BigBird (Zaheer et al. 2020)."""

import dataclasses
from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class SeenBlocks(NamedTuple):
    """Numbers of the blocks that each block sees; those that are not seen may be left out."""

    index: Int[Array, "B N S"]
    is_seen: Bool[Array, "B N S"]


@flax.struct.dataclass
class BlockPattern:
    """BigBird's pattern, of rows with one sequence each, padded on the right.

    A block sees itself, the blocks beside it, the first and the last block of its sequence, and
    random blocks. The first and the last block see the whole sequence. A sequence of at most
    :attr:`full_length` tokens is seen as a whole by all of its tokens.

    A block that is drawn at random counts twice if it is also seen for another reason. Outside of
    training, all random blocks are the first one, as in transformers.

    Attributes:
      size: Number of tokens of a block.
      num_random: Number of random blocks that each block sees.
      draws: Uniform numbers below 1, which select the random blocks; None outside of training.
    """

    size: int = flax.struct.field(pytree_node=False)
    num_random: int = flax.struct.field(pytree_node=False)
    draws: Float[Array, "N R"] | None = None

    @property
    def full_length(self) -> int:
        """Most tokens of a sequence that is seen as a whole."""
        return (5 + 2 * self.num_random) * self.size

    def draw(self, key: Array, length: int) -> "BlockPattern":
        """Returns the pattern of one step of training."""
        blocks = -(-length // self.size)
        shape = (blocks, self.num_random)
        draws = jax.random.uniform(key, shape)
        return dataclasses.replace(self, draws=draws)

    def lengths(self, length: int, segments: Int[Array, "B T"] | None) -> Int[Array, " B"]:
        """Returns the number of tokens of each row; one number for all rows without segments."""
        if segments is None:
            return jnp.full((1,), length)

        is_token = segments != 0  # [B, T]
        num_tokens = is_token.sum(axis=1)
        return jnp.maximum(num_tokens, 1)

    def seen(self, blocks: int, lengths: Int[Array, " B"]) -> SeenBlocks:
        """Returns what each block sees, if it is neither the first nor the last of a long row."""
        number = jnp.arange(blocks)[:, None]  # [N, 1]
        beside = jnp.arange(-1, 2)
        near = number + beside  # [N, 3]
        last = self._last_block(lengths)  # [B, 1, 1]

        # The first and the last block count once, even if they are near.
        first = jnp.zeros_like(last)
        is_after_first = near > 0
        is_before_last = near < last
        is_between = is_after_first & is_before_last  # [B, N, 3]

        # Without draws, all random blocks are the first one.
        draws = self.draws
        if draws is None:
            draws = jnp.zeros((blocks, self.num_random))
        drawn = jnp.floor(draws * (last + 1))
        random = drawn.astype(jnp.int32)  # [B, N, R]

        rows = len(lengths)

        def whole(x: Array, width: int) -> Array:
            return jnp.broadcast_to(x, (rows, blocks, width))

        near = jnp.clip(near, 0, blocks - 1)
        index = [
            whole(first, 1),
            whole(last, 1),
            whole(near, 3),
            whole(random, self.num_random),
        ]
        is_always = jnp.ones((1, 1, 1), bool)
        is_seen = [
            whole(is_always, 1),
            whole(last > 0, 1),
            whole(is_between, 3),
            whole(is_always, self.num_random),
        ]
        return SeenBlocks(
            index=jnp.concatenate(index, axis=2),
            is_seen=jnp.concatenate(is_seen, axis=2),
        )

    def counts(self, length: int, segments: Int[Array, "B T"] | None) -> Int[Array, "B 1 T T"]:
        """Returns how often each token sees each other one."""
        blocks = -(-length // self.size)
        lengths = self.lengths(length, segments)
        seen = self.seen(blocks, lengths)
        is_block = seen.index[..., None] == jnp.arange(blocks)  # [B, N, S, N]
        is_counted = is_block & seen.is_seen[..., None]
        counts = is_counted.sum(axis=2)  # [B, N, N]

        # The first block, the last block and all blocks of a short sequence see the whole.
        number = jnp.arange(blocks)[:, None]
        last = self._last_block(lengths)
        is_short = (lengths <= self.full_length)[:, None, None]
        sees_all = (number == 0) | (number == last) | is_short
        counts = jnp.where(sees_all, 1, counts)

        by_query = counts.repeat(self.size, axis=1)  # [B, T, N]
        by_token = by_query.repeat(self.size, axis=2)  # [B, T, T]
        return by_token[:, None, :length, :length]

    def _last_block(self, lengths: Int[Array, " B"]) -> Int[Array, "B 1 1"]:
        """Returns the number of the last block of each row."""
        last = (lengths - 1) // self.size
        return last[:, None, None]
