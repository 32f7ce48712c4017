"""LongT5 (Guo et al. 2022): T5 whose encoder sees nearby tokens, and maybe sums of blocks."""

import dataclasses
import functools
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from jaxformer.errors import UserError
from jaxformer.fields import setting
from jaxformer.models.t5 import T5, T5Config
from jaxformer.nn.attention import MultiHeadAttention
from jaxformer.nn.keys import Bias, Keys, Tokens
from jaxformer.nn.norm import RMSNorm
from jaxformer.nn.positions import BucketedBias
from jaxformer.nn.stack import Stack


@dataclasses.dataclass(frozen=True, kw_only=True)
class LongT5Config(T5Config):
    """The architecture of :class:`LongT5`, with the fields of :class:`~jaxformer.T5Config`.

    Attributes:
      local_radius: Maximum distance at which a token of the source sees others.
      global_block_size: Number of tokens in a block, whose sum all tokens of the source see:
        "transient global" attention; None for none.
    """

    architecture: Literal["longt5"] = "longt5"
    local_radius: int = setting(127, "positive")
    global_block_size: int | None = setting(None, "positive")
    max_length: int = setting(16_384, "size", may_differ=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bias_per_layer:
            raise UserError("model.bias_per_layer must be false for LongT5, whose layers share one")


class LongT5(T5):
    """LongT5, which is called and decodes as :class:`~jaxformer.Transformer` does.

    Time and memory of the encoder are proportional to the length of the source. With sums of
    blocks, they also have a part proportional to its square divided by the size of a block.
    """

    config: LongT5Config

    @nn.nowrap
    def _make_encoder(self) -> Stack:
        c = self.config
        if c.global_block_size is None:
            return super()._make_encoder().clone(window=c.local_radius)

        stack = self._make_stack(
            c.num_layers,
            RMSNorm,
            self_attention=functools.partial(
                BlockSumAttention,
                block_size=c.global_block_size,
                norm_epsilon=c.norm_epsilon,
            ),
        )
        make_bias = functools.partial(
            BlockSumBias,
            c.num_heads,
            c.global_block_size,
            num_buckets=c.num_buckets,
            max_distance=c.max_distance,
        )
        return stack.clone(window=c.local_radius, make_bias=make_bias)


class Blocks(NamedTuple):
    """The blocks of a batch of rows, G for each row; some are empty.

    Tokens after the last whole block of their segment, orphans, belong to this block.

    Attributes:
      of_token: The index of each token's block; -1 for a token without a block.
      segments: The segment of each block; 0 for an empty block.
      numbers: The number of each block in its segment, from 0.
      is_orphan: 1 for orphans, 0 for other tokens.
    """

    of_token: Int[Array, "B T"]
    segments: Int[Array, "B G"]
    numbers: Int[Array, "B G"]
    is_orphan: Int[Array, "B T"]


def blocks_of(tokens: Tokens, block_size: int) -> Blocks:
    """Returns the whole blocks of all segments, which may be packed into rows.

    The index of a block in its row is the index of its last token, divided by the size of a block.
    Blocks end at least one size apart, so that no two of them have the same index.
    """
    segments = tokens.segments
    assert segments is not None, "an encoder has segments"
    batch, length = segments.shape
    count = length // block_size
    index = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), (batch, length))
    positions = jnp.broadcast_to(tokens.positions, (batch, length))

    # Index of the last token of each token's block. A block is whole if it is of the same segment.
    own_end = index + (block_size - 1 - positions % block_size)
    is_inside = own_end < length
    segment_of_end = jnp.take_along_axis(segments, jnp.minimum(own_end, length - 1), axis=1)
    is_whole = is_inside & (segment_of_end == segments) & (segments != 0)

    # Orphans belong to the block before.
    end = jnp.where(is_whole, own_end, own_end - block_size)
    has_block = (segments != 0) & (is_whole | (positions >= block_size))
    of_token = jnp.where(has_block, end // block_size, -1)

    # Each block takes its segment and its number from its last token.
    is_end = is_whole & (end == index)
    block = jnp.where(is_end, of_token, count)  # Other tokens write out of range: nothing.
    row = jnp.arange(batch)[:, None]
    empty = jnp.zeros((batch, count), jnp.int32)
    return Blocks(
        of_token=of_token,
        segments=empty.at[row, block].set(segments, mode="drop"),
        numbers=empty.at[row, block].set(positions // block_size, mode="drop"),
        is_orphan=(~is_whole).astype(jnp.int32),
    )


class BlockSumAttention(MultiHeadAttention):
    """Self-attention to nearby tokens and to the normalized sums of all blocks (section 3.2).

    Queries, keys and values of sums are computed as the tokens' are. The keys that it is called
    with have a window. Needs a :class:`BlockSumBias`.

    Attributes:
      block_size: Number of tokens in a block.
      norm_epsilon: Added to the mean square of the sums.
    """

    block_size: int = 16
    norm_epsilon: float = 1e-6

    def setup(self) -> None:
        super().setup()
        self.sum_norm = RMSNorm(self.norm_epsilon)

    def attend(
        self,
        x: Float[Array, "B T D"],
        keys: Keys,
        memory: Any = None,
        *,
        cache: Any = None,
        dropout: Int[Array, " B"] | None = None,
    ) -> tuple[Float[Array, "B T D"], None]:
        """Attends from x to itself and to its blocks, without a memory or a cache."""
        assert memory is None, "only encoders have it"
        assert cache is None, "only encoders have it"
        blocks = blocks_of(keys.keys, self.block_size)
        count = blocks.segments.shape[1]

        # A token is in one block, or in none.
        is_member = blocks.of_token[:, :, None] == jnp.arange(count)  # [B, T, G]
        sums = jnp.einsum("btd,btg->bgd", x, is_member.astype(x.dtype))
        sums = self.sum_norm(sums)

        # The sums are the global tokens of a row: all see them, despite the window.
        with_sums = jnp.concatenate([sums.astype(x.dtype), x], axis=1)  # [B, G + T, D]
        tokens = _tokens_with_blocks(keys.keys, blocks)
        keys = dataclasses.replace(keys, queries=tokens, keys=tokens, global_tokens=count)
        attended, _ = super().attend(with_sums, keys, dropout=dropout)
        return attended[:, count:], None

    @nn.nowrap
    def _select_weights(
        self, weights: Float[Array, "B H T S"], keys: Keys
    ) -> Float[Array, "B H T S"]:
        """Returns the weights of tokens, without the weights of the sums."""
        count = keys.global_tokens
        return weights[..., count:, count:]


def _tokens_with_blocks(tokens: Tokens, blocks: Blocks) -> Tokens:
    """Returns blocks and tokens, G + T, with coded positions for :class:`BlockSumBias`.

    Block n has position -1 - n. A token at p has position 2 p, and 2 p + 1 if it is an orphan.
    """
    token_codes = 2 * tokens.positions + blocks.is_orphan
    block_codes = -1 - blocks.numbers
    length = blocks.segments.shape[1] + token_codes.shape[1]
    segments = jnp.asarray(tokens.segments)
    return Tokens.of(
        length,
        segments=jnp.concatenate([blocks.segments, segments], axis=1),
        positions=jnp.concatenate([block_codes, token_codes], axis=1),
    )


class BlockSumBias(nn.Module):
    """T5's relative positions: of tokens to tokens, and of the tokens' blocks to blocks.

    It reads the positions that :func:`_tokens_with_blocks` codes; negative ones are blocks.
    """

    num_heads: int
    block_size: int
    num_buckets: int = 32
    max_distance: int = 128

    @nn.compact
    def __call__(self) -> Bias:
        make_bias = functools.partial(
            BucketedBias,
            self.num_heads,
            causal=False,
            num_buckets=self.num_buckets,
            max_distance=self.max_distance,
        )
        of_tokens = make_bias(name="tokens")()
        of_blocks = make_bias(name="blocks")()

        def bias(
            queries: Int[Array, "#B T"],
            keys: Int[Array, "#B S"],
        ) -> Float[Array, "#B H T S"]:
            positions = queries // 2
            is_orphan = queries % 2
            blocks = positions // self.block_size - is_orphan

            between_tokens = of_tokens(positions, keys // 2)
            between_blocks = of_blocks(blocks, -1 - keys)
            is_block = (keys < 0)[:, None, None]
            return jnp.where(is_block, between_blocks, between_tokens)

        return bias
