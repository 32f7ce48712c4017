"""Embeddings and output logits (section 3.4)."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxformer.layout import expand_like, has_explicit_axes, map_rows, take_rows
from jaxformer.nn.argument_checks import check_ids, check_length
from jaxformer.nn.constants import without_constants
from jaxformer.nn.matmul import int8_matmul, matmul_nt, project
from jaxformer.nn.precision import (
    ComputeDtype,
    Int8Matrix,
    activation_dtype,
    at_least_float32,
)
from jaxformer.nn.sharding import per_batch_shard


def embed(
    table: Float[Array, "V D"] | Int8Matrix, ids: Int[Array, "*rows"]
) -> Float[Array, "*rows D"]:
    """Returns rows of a table, float32 or float64; NaN for ids that are out of range."""
    if isinstance(table, Int8Matrix):
        values = take_rows(without_constants(table.values), ids).astype(jnp.float32)
        return values * take_rows(table.scale, ids)

    if has_explicit_axes(ids):
        return take_rows(table, ids).astype(at_least_float32(table))

    # Every device gathers the whole table: XLA of jax 0.10 crashes on lookups in a sharded table.
    found = per_batch_shard(take_rows, table, ids)
    rows = found.reshape(*ids.shape, table.shape[1])
    return rows.astype(at_least_float32(table))


def output_logits(
    x: Float[Array, "*rows D"],
    table: Float[Array, "V D"] | Int8Matrix,
    bias: Float[Array, " V"] | None = None,
) -> Float[Array, "*rows V"]:
    """Returns logits, the dot products of x with every row of a table, plus a bias.

    Logits are float32 or float64 even where layers compute in bfloat16: they often decide between
    words of similar probability, and take little of the time.
    """
    if isinstance(table, Int8Matrix):
        # Not a matmul with the transpose, which XLA would convert to int32 and then transpose.
        logits = map_rows(functools.partial(int8_matmul, axis=1), table, x)
    else:
        dtype = at_least_float32(x, table)
        logits = matmul_nt(x.astype(dtype), table.astype(dtype))

    if bias is None:
        return logits
    return logits + expand_like(bias.astype(logits.dtype), logits)


@dataclasses.dataclass(frozen=True, eq=False)
class Embedding:
    """Embedding of tokens and their positions."""

    table: Float[Array, "V E"] | Int8Matrix
    # of at least this many positions; None if no encoding is added
    encodings: Callable[[int], Array | np.ndarray] | None
    max_length: int  # number of positions that have an encoding
    compute_dtype: ComputeDtype
    is_scaled: bool = True  # multiplies by sqrt(d_model)
    zero_id: int | None = None  # a token whose embedding is the zero vector
    projection: Any = None  # a matrix [E, D], of a table that is narrower than the layers
    word_norm: Callable[[Array], Array] | None = None  # normalizes before positions are added
    norm: Callable[[Array], Array] | None = None  # normalizes the sum

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        positions: Int[Array, "#B T"] | None = None,
        longest: int | None = None,
    ) -> Float[Array, "B T D"]:
        """Returns embeddings times sqrt(d_model) (section 3.4) plus positions (section 3.5).

        Later models leave out the factor, encode positions in their attention only, or normalize
        embeddings before or after they add positions. Positions are 0, 1, ... when None, and less
        than ``longest``, to encode no more than needed. In an export for any length, tokens at
        positions without an encoding give NaN. Raises a ``UserError`` if a sequence is longer than
        ``max_length``, or an id is not in the table.
        """
        numbers = self.table.values if isinstance(self.table, Int8Matrix) else self.table
        vocab_size = numbers.shape[0]
        check_ids("tokens", tokens, vocab_size)
        x = embed(self.table, tokens)

        # In an export for any length, that length is symbolic.
        length = tokens.shape[1]
        is_whole = positions is None and isinstance(length, int)
        if is_whole:
            check_length("sequence", length, self.max_length)

        if self.zero_id is not None:
            is_zero = (tokens == self.zero_id)[..., None]
            x = jnp.where(is_zero, 0.0, x)
        if self.projection is not None:
            x = project(x, self.projection, compute_dtype=self.compute_dtype)
        if self.is_scaled:
            x = x * math.sqrt(x.shape[-1])
        if self.word_norm is not None:
            x = self.word_norm(x)

        if self.encodings is not None:
            if is_whole:
                encoding = self.encodings(length)[:length]  # [T, D]
            else:
                positions = jnp.arange(length) if positions is None else positions
                longest = min(longest or self.max_length, self.max_length)
                table = jnp.asarray(self.encodings(longest))
                encoding = take_rows(table, positions)  # [B, T, D]
            x = x + expand_like(jnp.asarray(encoding, x.dtype), x)

        if self.norm is not None:
            x = self.norm(x)
        return x.astype(activation_dtype(self.compute_dtype, x))
