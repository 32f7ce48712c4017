"""Equation 1 over any source of keys and values, and efficient ways to compute it.

:func:`attend` is the plain implementation. :func:`windowed_attention`,
:func:`block_sparse_attention`, :func:`chunked_attention` and :func:`fused_attention` compute the
same in less time or memory; :func:`attention` chooses.
"""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Iterator, Set
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import flax.struct
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, Shaped

from jaxformer.errors import UserError
from jaxformer.nn.backend import backend
from jaxformer.nn.dropout import RowDropout
from jaxformer.nn.keys import Keys, Tokens
from jaxformer.nn.matmul import SCORES, WEIGHTED_SUM, einsum
from jaxformer.nn.parameters import LAYERS
from jaxformer.nn.precision import at_least_float32
from jaxformer.nn.sharding import num_shards

Queries: TypeAlias = Float[Array, "B T H K"]
Weights: TypeAlias = Float[Array, "B H T S"]

# Rules besides the mask that implementations follow; they are the same for all blocks of queries.
_RULES = frozenset({"scale", "bias", "soft_cap"})
_RULES_OF_CUDNN = frozenset({"scale"})
_RULES_OF_ATTEND = _RULES | {"blocks"}


@runtime_checkable
class KeyValueSource(Protocol):
    """Projected keys and values in any layout, such as a cache."""

    @property
    def num_heads(self) -> int:
        """Number of heads of the keys and values."""
        ...

    def scores(self, queries: Float[Array, "B T H K"]) -> Float[Array, "B H T S"]:
        """Returns the dot products of queries and keys, at least float32."""
        ...

    def weighted_sum(self, weights: Float[Array, "B H T S"]) -> Float[Array, "B T H V"]:
        """Returns the values, summed with weights, in their own dtype."""
        ...


@flax.struct.dataclass
class KeyValues:
    """Projected keys and values of whole sequences, and the matmul dtype; their own when None."""

    keys: Float[Array, "*B S H K"]
    values: Float[Array, "*B S H V"]
    dtype: DTypeLike | None = flax.struct.field(pytree_node=False, default=None)

    @property
    def num_heads(self) -> int:
        return self.keys.shape[-2]

    def scores(self, queries: Float[Array, "B T H K"]) -> Float[Array, "B H T S"]:
        return einsum(SCORES, queries, self.keys, dtype=self.dtype)

    def weighted_sum(self, weights: Float[Array, "B H T S"]) -> Float[Array, "B T H V"]:
        dtype = self.values.dtype
        summed = einsum(WEIGHTED_SUM, weights.astype(dtype), self.values, dtype=self.dtype)
        return summed.astype(dtype)


def attend(
    queries: Float[Array, "B T H K"],
    key_values: KeyValueSource,
    keys: Keys,
    dropout: Callable[[Weights], Weights] | None = None,
) -> tuple[Float[Array, "B T H V"], Float[Array, "B H T S"]]:
    """Returns softmax(Q K^T / sqrt(d_k)) V (equation 1), and the weights before dropout.

    Keys and values may have fewer heads than queries. Each of their heads then serves as many
    consecutive heads of the queries: grouped-query attention (Ainslie et al. 2023), or multi-query
    attention (Shazeer 2019) with a single one.

    A query that may attend nowhere, which is padding, gets the average of all values. No result
    may depend on it. ``dropout`` applies to the weights that multiply the values.
    """
    _check_rules("attend", keys, _RULES_OF_ATTEND)
    batch, length, heads, d_k = queries.shape
    grouped = _group(queries, key_values.num_heads)  # [B, Q, J, K]

    # Q K^T
    scores = key_values.scores(grouped)  # [B, J, Q, S]
    num_keys = scores.shape[-1]
    scores = scores.reshape(batch, heads, length, num_keys)  # [B, H, T, S]

    # / sqrt(d_k), or another scale
    scores = scores / math.sqrt(d_k) if keys.scale is None else scores * keys.scale

    # Later models bound the scores, or add a bias to them.
    if keys.soft_cap is not None:
        scores = keys.soft_cap * jnp.tanh(scores / keys.soft_cap)
    if keys.bias is not None:
        bias = keys.bias(keys.queries.positions, keys.keys.positions)
        scores = scores + bias.astype(scores.dtype)

    # BigBird may see a block several times.
    if keys.blocks is not None:
        counts = keys.blocks.counts(num_keys, keys.keys.segments)  # [B, 1, T, S]
        scores = scores + jnp.log(jnp.maximum(counts, 1)).astype(scores.dtype)
        scores = jnp.where(counts > 0, scores, jnp.finfo(scores.dtype).min)

    weights = _masked_softmax(scores, keys.allowed())  # [B, H, T, S]

    # softmax(...) V
    kept = weights if dropout is None else dropout(weights)
    _, num_queries, kv_heads, _ = grouped.shape
    kept = kept.reshape(batch, kv_heads, num_queries, num_keys)  # [B, J, Q, S]
    attended = key_values.weighted_sum(kept)  # [B, Q, J, V]
    return _ungroup(attended, heads), weights


def _unsupported_rules(keys: Keys, supported: Set[str]) -> Iterator[str]:
    """Yields the rules of keys that are neither in their mask nor supported."""
    for name in keys.rules():
        if name not in keys.masking and name not in supported:
            yield name


def _check_rules(owner: str, keys: Keys, supported: Set[str] = _RULES) -> None:
    for name in _unsupported_rules(keys, supported):
        raise UserError(f"{owner}: expected no {name}, a rule that it does not follow")


def _masked_softmax(
    scores: Float[Array, "B H T S"], allowed: Bool[Array, "#B #H #T #S"] | None
) -> Float[Array, "B H T S"]:
    if allowed is not None:
        # The lowest float gives the same weights as -inf, exactly 0, but no NaN in padding.
        scores = jnp.where(allowed, scores, jnp.finfo(scores.dtype).min)
    return jax.nn.softmax(scores, axis=-1)


def _group(queries: Float[Array, "B T H K"], num_heads: int) -> Float[Array, "B Q J K"]:
    """Returns queries of J heads: Q = T * H / J, first all of the first head of each group."""
    batch, length, heads, size = queries.shape
    if heads == num_heads:
        return queries

    groups = heads // num_heads
    split = queries.reshape(batch, length, num_heads, groups, size)
    by_group = jnp.moveaxis(split, 3, 1)  # [B, H/J, T, J, K]
    return by_group.reshape(batch, groups * length, num_heads, size)


def _ungroup(attended: Float[Array, "B Q J V"], heads: int) -> Float[Array, "B T H V"]:
    batch, queries, num_heads, size = attended.shape
    if heads == num_heads:
        return attended

    groups = heads // num_heads
    length = queries // groups
    by_group = attended.reshape(batch, groups, length, num_heads, size)
    split = jnp.moveaxis(by_group, 1, 3)  # [B, T, J, H/J, V]
    return split.reshape(batch, length, heads, size)


def attention(
    queries: Queries,
    key_values: KeyValues,
    keys: Keys,
    dropout: RowDropout | None = None,
) -> Float[Array, "B T H V"]:
    """Computes equation 1 over whole sequences, with the implementation that suits their length."""
    length = queries.shape[1]
    seen = key_values.keys.shape[1]
    # In an export for any length, the lengths are symbolic and cannot be compared.
    is_known = isinstance(length, int) and isinstance(seen, int)

    if keys.blocks is not None:
        if not is_known:
            raise UserError("attention: expected a known length, which keys with blocks need")
        if length > keys.blocks.full_length:
            return block_sparse_attention(queries, key_values, keys, dropout=dropout)
        # A short sequence sees all of its tokens.
        keys = dataclasses.replace(keys, blocks=None)

    is_self_attention = is_known and length == seen
    is_long = is_self_attention and seen > 4 * (keys.window or seen)
    if is_long and keys.mask is None:
        return windowed_attention(queries, key_values, keys, dropout=dropout)

    if dropout is None and has_fused_kernel(queries, key_values.values, keys):
        return fused_attention(queries, key_values, keys)

    if is_known and length * seen > backend().scores_per_chunk:
        return chunked_attention(queries, key_values, keys, dropout=dropout)

    attended, _ = attend(queries, key_values, keys, dropout=dropout)
    return attended


def windowed_attention(
    queries: Queries,
    key_values: KeyValues,
    keys: Keys,
    dropout: RowDropout | None = None,
) -> Float[Array, "B T H V"]:
    """Computes self-attention with a window, in time and memory O(window * T).

    The keys have a window and no mask. The sequence is split into blocks of one window. A block
    attends to itself, to the block before it and, unless the keys are causal, to the one after it.
    All attend to the global tokens, which attend to all tokens.
    """
    _check_rules("windowed_attention", keys)
    by_block = _attend_by_block(queries, key_values, keys, dropout=dropout)
    first = keys.global_tokens
    if not first:
        return by_block

    # The global tokens see all tokens, and not only those near them.
    tokens = jax.tree.map(lambda a: a[:, :first], keys.queries)
    seeing_all = dataclasses.replace(keys, queries=tokens)
    global_queries = queries[:, :first]
    of_global, _ = attend(global_queries, key_values, seeing_all, dropout=dropout)
    return jnp.concatenate([of_global, by_block[:, first:]], axis=1)


def _attend_by_block(
    queries: Queries,
    key_values: KeyValues,
    keys: Keys,
    dropout: RowDropout | None,
) -> Float[Array, "B T H V"]:
    """Attends from each block of one window to its neighborhood and the global tokens."""
    length = queries.shape[1]
    size = keys.window or 1
    blocks = -(-length // size)
    first = keys.global_tokens

    def own(x: Array) -> Array:
        """Returns the tokens of each block: [B, T, ...] to [B, blocks, size, ...]."""
        return _split(x, 1, blocks=blocks, size=size)

    near = functools.partial(
        _neighborhoods,
        blocks=blocks,
        size=size,
        after=0 if keys.causal else 1,
        global_tokens=first,
    )
    # False for the empty places before the first token and after the last one.
    is_token = near(jnp.ones((1, length), bool))
    tokens = jax.tree.map(near, keys.keys)
    if first:
        # A global token counts once, among the global ones.
        place = jnp.arange(is_token.shape[2])
        is_near = (place >= first)[None, None]
        is_repeated = is_near & (tokens.index < first)
        is_token &= ~is_repeated

    # Only these have blocks; all other fields of the keys are the same for every block.
    blocked = _Block(
        queries=own(queries),
        query_tokens=jax.tree.map(own, keys.queries),
        key_values=jax.tree.map(near, key_values),
        key_tokens=tokens,
        mask=is_token[:, :, None, None],
    )

    def block(of_block: _Block, number: Array) -> Array:
        seen = dataclasses.replace(
            keys,
            queries=of_block.query_tokens,
            keys=of_block.key_tokens,
            mask=of_block.mask,
            slots=None,
        )
        drop = _dropout_of_block(dropout, number, blocks)
        return attend(of_block.queries, of_block.key_values, seen, dropout=drop)[0]

    attend_by_block = jax.vmap(block, in_axes=(1, 0), out_axes=1)
    attended = attend_by_block(blocked, jnp.arange(blocks))  # [B, blocks, size, H, V]
    return _join(attended, length)


class _Block(NamedTuple):
    """The arguments of attention that differ between blocks of queries, a pytree."""

    queries: Array
    query_tokens: Tokens
    key_values: KeyValues
    key_tokens: Tokens
    mask: Array


def _neighborhoods(
    x: Array,
    *,
    blocks: int,
    size: int,
    after: int,
    global_tokens: int,
) -> Shaped[Array, "B blocks seen ..."]:
    """Returns the tokens that each block sees: the global ones, and its neighborhood.

    The neighborhood of a block begins with the block before it, and ends ``after`` blocks after it.
    """
    before = 1
    num_blocks = before + blocks + after
    split = _split(x, 1, blocks=num_blocks, size=size, before=before)

    neighborhood = [split[:, start : start + blocks] for start in range(before + 1 + after)]
    if not global_tokens:
        return jnp.concatenate(neighborhood, axis=2)

    shared = jnp.repeat(x[:, None, :global_tokens], blocks, axis=1)
    return jnp.concatenate([shared, *neighborhood], axis=2)


def block_sparse_attention(
    queries: Queries,
    key_values: KeyValues,
    keys: Keys,
    dropout: RowDropout | None = None,
) -> Float[Array, "B T H V"]:
    """Computes self-attention of keys with ``blocks``, in time and memory O(T).

    Most blocks of queries attend to a few blocks of keys. Two of each row attend to all tokens, and
    so do the tokens of short rows.
    """
    _check_rules("block_sparse_attention", keys, _RULES_OF_ATTEND)
    pattern = keys.blocks
    assert pattern is not None
    batch, length, _, _ = queries.shape
    blocks = -(-length // pattern.size)
    lengths = jnp.broadcast_to(pattern.lengths(length, keys.keys.segments), (batch,))
    whole = dataclasses.replace(keys, blocks=None)

    def drop(part: Any) -> RowDropout | None:
        """Returns the dropout of a block, or of the three calls below."""
        return _dropout_of_block(dropout, part, blocks + 3)

    attended = _attend_to_seen_blocks(queries, key_values, keys, lengths, drop)

    # The first and the last block of a row see all of it.
    last = (lengths - 1) // pattern.size  # [B]
    for part, place in enumerate((jnp.zeros_like(last), last)):
        of_place = functools.partial(_block_of_each_row, size=pattern.size, place=place)
        seeing_all = dataclasses.replace(whole, queries=jax.tree.map(of_place, keys.queries))
        own = of_place(queries)
        at_edge, _ = attend(own, key_values, seeing_all, drop(blocks + part))

        is_edge = jnp.arange(blocks) == place[:, None]  # [B, blocks]
        is_edge = is_edge[:, :, None, None, None]
        attended = jnp.where(is_edge, at_edge[:, None], attended)
    result = _join(attended, length)

    # A short row is seen as a whole.
    def beginning(x: Array) -> Array:
        return x[:, : pattern.full_length]

    tokens = jax.tree.map(beginning, keys.queries)
    short = dataclasses.replace(whole, queries=tokens, keys=tokens)
    near = jax.tree.map(beginning, key_values)
    of_short, _ = attend(beginning(queries), near, short, drop(blocks + 2))
    is_short = (lengths <= pattern.full_length)[:, None, None, None]
    first = jnp.where(is_short, of_short, beginning(result))
    return jnp.concatenate([first, result[:, pattern.full_length :]], axis=1)


def _attend_to_seen_blocks(
    queries: Queries,
    key_values: KeyValues,
    keys: Keys,
    lengths: Int[Array, " B"],
    drop: Callable[[Any], RowDropout | None],
) -> Float[Array, "B blocks size H V"]:
    """Attends from each block to the blocks that it sees."""
    pattern = keys.blocks
    assert pattern is not None
    length = queries.shape[1]
    size = pattern.size
    blocks = -(-length // size)
    seen = pattern.seen(blocks, lengths)

    def own(x: Array) -> Array:
        """Returns the tokens of each block: [B, T, ...] to [B, blocks, size, ...]."""
        return _split(x, 1, blocks=blocks, size=size)

    def gather(x: Array) -> Array:
        """Returns the tokens that each block sees: [B, T, ...] to [B, blocks, seen, ...]."""
        rows = jnp.broadcast_to(x, (len(lengths), *x.shape[1:]))
        found = jax.vmap(operator.getitem)(own(rows), seen.index)
        return found.reshape(len(lengths), blocks, -1, *x.shape[2:])

    is_token = gather(jnp.ones((1, length), bool))
    is_seen = jnp.repeat(seen.is_seen, size, axis=2) & is_token  # [B, blocks, seen]
    blocked = _Block(
        queries=own(queries),
        query_tokens=jax.tree.map(own, keys.queries),
        key_values=jax.tree.map(gather, key_values),
        key_tokens=jax.tree.map(gather, keys.keys),
        mask=is_seen[:, :, None, None],
    )

    def block(of_block: _Block, number: Array) -> Array:
        near = dataclasses.replace(
            keys,
            queries=of_block.query_tokens,
            keys=of_block.key_tokens,
            mask=of_block.mask,
            blocks=None,
        )
        return attend(of_block.queries, of_block.key_values, near, drop(number))[0]

    attend_by_block = jax.vmap(block, in_axes=(1, 0), out_axes=1)
    return attend_by_block(blocked, jnp.arange(blocks))


def _block_of_each_row(x: Array, size: int, place: Int[Array, " B"]) -> Array:
    """Returns a block of each row, [B, T, ...] to [B, size, ...], given its number."""
    rows = jnp.broadcast_to(x, (len(place), *x.shape[1:]))
    blocks = _split(rows, 1, blocks=-(-x.shape[1] // size), size=size)
    return jax.vmap(operator.getitem)(blocks, place)


def chunked_attention(
    queries: Queries,
    key_values: KeyValues,
    keys: Keys,
    dropout: RowDropout | None = None,
) -> Float[Array, "B T H V"]:
    """Computes equation 1 for a few queries at a time, in memory O(S).

    The backward pass recomputes the weights. Masks and biases are computed within each chunk.
    """
    _check_rules("chunked_attention", keys)
    length = queries.shape[1]
    seen = key_values.keys.shape[1]
    most = backend().scores_per_chunk // (8 * seen)
    size = max(1, min(length, most))
    chunks = -(-length // size)

    def split(x: Array, axis: int = 1) -> Array:
        """Returns chunks of an axis, on a new first axis."""
        return jnp.moveaxis(_split(x, axis, blocks=chunks, size=size), axis, 0)

    mask = keys.mask
    own_masks = None
    if mask is not None and mask.shape[2] != 1:  # It has a row for each query.
        own_masks = split(mask, axis=2)

    @jax.checkpoint
    def chunk(arguments: tuple[Array, Array, Tokens, Array | None]) -> Array:
        number, queries, tokens, own_mask = arguments
        own_mask = mask if own_mask is None else own_mask
        own = dataclasses.replace(keys, queries=tokens, mask=own_mask)
        drop = _dropout_of_block(dropout, number, chunks)
        return attend(queries, key_values, own, dropout=drop)[0]

    tokens = jax.tree.map(split, keys.queries)
    arguments = (jnp.arange(chunks), split(queries), tokens, own_masks)
    result = jax.lax.map(chunk, arguments)  # [chunks, B, size, H, V]
    return _join(jnp.moveaxis(result, 0, 1), length)


def _split(
    x: Array,
    axis: int,
    blocks: int,
    size: int,
    before: int = 0,
) -> Array:
    """Splits an axis, [B, T, ...] to [B, blocks, size, ...], after ``before`` empty ones."""
    start = before * size
    end = blocks * size - start - x.shape[axis]
    padding = [(0, 0)] * x.ndim
    padding[axis] = (start, end)

    padded = jnp.pad(x, padding)
    leading = x.shape[:axis]
    trailing = x.shape[axis + 1 :]
    return padded.reshape(*leading, blocks, size, *trailing)


def _join(x: Array, length: int) -> Array:
    """Joins blocks: [B, blocks, size, ...] to [B, T, ...]."""
    batch, blocks, size, *trailing = x.shape
    joined = x.reshape(batch, blocks * size, *trailing)
    return joined[:, :length]


def _dropout_of_block(
    dropout: RowDropout | None,
    number: Array | int,
    blocks: int,
) -> RowDropout | None:
    """Returns the dropout of a block of queries, which has masks of its own."""
    if dropout is None:
        return None
    row_ids = dropout.row_ids * blocks + number
    return dataclasses.replace(dropout, row_ids=row_ids)


def fused_attention(
    queries: Queries,
    key_values: KeyValues,
    keys: Keys,
) -> Float[Array, "B T H V"]:
    """Computes :func:`attend` by cuDNN, without weights in memory, if :func:`has_fused_kernel`."""
    _check_rules("fused_attention", keys, _RULES_OF_CUDNN)
    mask = keys.allowed()
    if mask is not None:  # The kernel returns NaN for queries that may attend nowhere.
        mask = mask | ~mask.any(axis=-1, keepdims=True)

    return jax.nn.dot_product_attention(
        queries,
        key_values.keys,
        key_values.values,
        mask=mask,
        scale=keys.scale,
        implementation="cudnn",
    )


def has_fused_kernel(
    queries: Queries,
    values: Float[Array, "B S J V"],
    keys: Keys,
) -> bool:
    """Returns whether :func:`fused_attention` supports these arrays and this device.

    It requires an NVIDIA GPU (Ampere or later), bfloat16, d_k = d_v, a multiple of 8 up to 128,
    even lengths, and keys without a bias or any other field that is not part of their mask. Neither
    heads, the batch nor layers may be sharded, which is untested.
    """
    if not backend().fused_attention:
        return False

    _, length, _, d_k = queries.shape
    _, seen, _, d_v = values.shape
    fits = (
        not any(_unsupported_rules(keys, _RULES_OF_CUDNN))
        and queries.dtype == values.dtype == jnp.bfloat16
        and d_k == d_v
        and d_k <= 128
        and d_k % 8 == 0
        and length % 2 == 0
        and seen % 2 == 0
    )
    return fits and num_shards("heads") == num_shards("batch") == num_shards(LAYERS) == 1


def dot_product_attention(
    queries: Float[Array, "B T H K"],
    keys: Float[Array, "B S J K"],
    values: Float[Array, "B S J V"],
    mask: Bool[Array, "#B #H #T #S"] | None = None,
    dtype: DTypeLike | None = None,
) -> tuple[Float[Array, "B T H V"], Float[Array, "B H T S"]]:
    """Returns softmax(Q K^T / sqrt(d_k)) V (equation 1) and the attention weights, of plain arrays.

    Args:
      queries: Q.
      keys: K, with H heads, or with a divisor of H as :func:`attend` describes.
      values: V, in whose dtype the result is; weights are float32 or float64.
      mask: True where a query may attend; everywhere when None.
      dtype: Dtype to multiply in; the dtype of the arrays when None.
    """
    query_tokens = Tokens.of(queries.shape[1])
    key_tokens = Tokens.of(keys.shape[1])
    visible = Keys(query_tokens, key_tokens, mask)
    return attend(queries, KeyValues(keys, values, dtype), visible)


def additive_attention(
    queries: Float[Array, "B T H K"],
    keys: Float[Array, "B S H K"],
    values: Float[Array, "B S H V"],
    mask: Bool[Array, "#B #H #T #S"],
    vector: Float[Array, "H K"],
) -> tuple[Float[Array, "B T H V"], Float[Array, "B H T S"]]:
    """Returns additive attention (section 3.2.1; Bahdanau et al. 2015) and its weights.

    :class:`~jaxformer.Recurrent` decodes with it. The mask and the results are as for
    :func:`dot_product_attention`. Queries and keys are already multiplied by the network's
    matrices; ``vector`` has the weights of its output.
    """
    scores = additive_scores(queries, keys, vector)
    weights = _masked_softmax(scores, mask)
    return KeyValues(keys, values).weighted_sum(weights), weights


def additive_scores(
    queries: Float[Array, "B T H K"],
    keys: Float[Array, "B S H K"],
    vector: Float[Array, "H K"],
) -> Float[Array, "B H T S"]:
    """Returns scores ``vector . tanh(query + key)``, of a network with K hidden units.

    No matmul can compute them: all B T S H K hidden units are computed, though not stored.
    """
    dtype = at_least_float32(queries, keys, vector)
    queries = queries.astype(dtype)
    keys = keys.astype(dtype)
    vector = vector.astype(dtype)

    summed = queries[:, :, None] + keys[:, None]
    hidden = jnp.tanh(summed)  # [B, T, S, H, K]
    return jnp.einsum("btshk,hk->bhts", hidden, vector)
