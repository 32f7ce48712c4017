"""Positional encodings (section 3.5, and later ones).

:data:`ENCODINGS` has one for each value of ``model.positions``, :data:`Positions`.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from jaxformer.errors import UserError
from jaxformer.layout import expand_like, take_rows
from jaxformer.nn.keys import Bias
from jaxformer.nn.parameters import parameter
from jaxformer.nn.precision import at_least_float32

Positions: TypeAlias = Literal[
    "sinusoidal", "tensor2tensor", "fairseq", "learned", "rotary", "alibi", "relative"
]


def sinusoidal_positions(
    length: int,
    d_model: int,
    dtype: DTypeLike = np.float32,
) -> Float[np.ndarray, "T D"]:
    """Returns the sinusoids of section 3.5, sine and cosine interleaved.

    PE(pos, 2i) = sin(pos / 10000^(2i/d_model)); PE(pos, 2i+1) = cos(pos / 10000^(2i/d_model)).
    Angles are computed in float64, so that distant positions are as exact as near ones.

    >>> sinusoidal_positions(2, 2).round(4).tolist()
    [[0.0, 1.0], [0.8414999842643738, 0.5403000116348267]]

    Raises:
      UserError: ``d_model`` is odd or not positive, or ``length`` is negative.
    """
    _check_sinusoids(length, d_model)
    even = np.arange(0, d_model, 2)  # 2i
    frequencies = 10_000.0 ** (-even / d_model)
    angles = np.arange(length)[:, None] * frequencies  # [T, D/2]
    sine = np.sin(angles)
    cosine = np.cos(angles)
    pairs = np.stack([sine, cosine], axis=-1)  # [T, D/2, 2]
    return pairs.reshape(length, d_model).astype(dtype)


def _check_sinusoids(length: int, d_model: int) -> None:
    if d_model < 1 or d_model % 2:
        raise UserError(
            "d_model must be even, since sinusoidal positions are sine and cosine pairs: got "
            f"{d_model}; use {max(2, d_model + 1)}"
        )
    if length < 0:
        raise UserError(f"length must be 0 or more: got {length}")


def tensor2tensor_positions(length: int, d_model: int) -> Float[np.ndarray, "T D"]:
    """Returns the sinusoids of Tensor2Tensor, which Marian also has, in float64.

    In the authors' own code, all sines come before all cosines, and the wavelengths grow from 2 pi
    to exactly 10000 * 2 pi: the angles are pos / 10000^(i / (d_model/2 - 1)).

    >>> tensor2tensor_positions(2, 4).round(4).tolist()[1]
    [0.8415, 0.0001, 0.5403, 1.0]

    Errors as for :func:`sinusoidal_positions`; ``d_model`` is at least 4.
    """
    _check_sinusoids(length, d_model)
    pairs = d_model // 2
    if pairs < 2:
        raise UserError(f"d_model must be at least 4 for tensor2tensor positions: got {d_model}")

    pair = np.arange(pairs)  # i
    frequencies = 10_000.0 ** (-pair / (pairs - 1))
    angles = np.arange(length)[:, None] * frequencies  # [T, D/2]
    sine = np.sin(angles)
    cosine = np.cos(angles)
    return np.concatenate([sine, cosine], axis=1)


def fairseq_positions(length: int, d_model: int) -> Float[np.ndarray, "T D"]:
    """Returns :func:`tensor2tensor_positions` from 2 on, as Fairseq counts from its padding, 1."""
    return tensor2tensor_positions(length + 2, d_model)[2:]


@dataclasses.dataclass(frozen=True)
class LinearScaling:
    """Divides all frequencies of rotary positions by a factor (Chen et al. 2023).

    A model then reads positions as if they were closer, and longer texts than it was trained with.
    """

    factor: float

    def __call__(self, frequencies: Float[np.ndarray, " P"]) -> Float[np.ndarray, " P"]:
        return frequencies / self.factor


@dataclasses.dataclass(frozen=True)
class Llama3Scaling:
    """Divides the low frequencies of rotary positions by a factor, as LLaMA 3.1 does.

    A frequency is low if it turns less than ``low_turns`` times in ``original_length`` positions,
    the length of the texts that the model was trained with first. From ``high_turns`` on, it stays
    as it is. In between, the result is a mean of both, weighted by the number of turns.
    """

    factor: float
    low_turns: float
    high_turns: float
    original_length: int

    def __call__(self, frequencies: Float[np.ndarray, " P"]) -> Float[np.ndarray, " P"]:
        turns = self.original_length * frequencies / (2 * np.pi)
        between = (turns - self.low_turns) / (self.high_turns - self.low_turns)
        kept = np.clip(between, 0, 1)
        return frequencies * (kept + (1 - kept) / self.factor)


# Maps the frequencies of rotary positions to others.
RotaryScaling: TypeAlias = Callable[[Float[np.ndarray, " P"]], Float[np.ndarray, " P"]]


def rotary_positions(
    heads: Float[Array, "B T H K"],
    positions: Int[Array, "#B T"],
    base: float = 10_000.0,
    scaling: RotaryScaling | None = None,
) -> Float[Array, "B T H K"]:
    """Rotates queries or keys by angles proportional to their positions (Su et al. 2021, RoFormer).

    Entries i and i + K/2 are a point in the plane, rotated by the angle pos / base^(2i/K). The dot
    product of a query and a key then depends only on the distance between them.

    >>> rotary_positions(jnp.array([[[[1.0, 0.0]]]]), jnp.array([[1]])).round(4).tolist()
    [[[[0.5403000116348267, 0.8414999842643738]]]]

    Args:
      heads: Queries or keys; K is even.
      positions: Position of each token in its sequence, from 0.
      base: Sets the longest period, 2 pi base^((K-2)/K) positions.
      scaling: Changes the frequencies, for instance a :class:`Llama3Scaling`.
    """
    size = heads.shape[-1]
    if size % 2:
        raise UserError(f"rotary positions: expected an even size of a head, d_k, got {size}")

    dtype = at_least_float32(heads)
    even = np.arange(0, size, 2)  # 2i
    frequencies = base ** (-even / size)  # [K/2]
    if scaling is not None:
        frequencies = scaling(frequencies)

    position = positions[:, :, None, None].astype(dtype)
    frequency = frequencies.astype(dtype)[None, None, None]
    angles = position * frequency  # [B, T, 1, K/2]
    sine = jnp.sin(angles)
    cosine = jnp.cos(angles)

    # The points (x, y) in the plane, rotated.
    x, y = jnp.split(heads.astype(dtype), 2, axis=-1)
    rotated_x = x * cosine - y * sine
    rotated_y = x * sine + y * cosine
    rotated = jnp.concatenate([rotated_x, rotated_y], axis=-1)
    return rotated.astype(heads.dtype)


class LinearBias(nn.Module):
    """ALiBi (Press et al. 2022): scores fall in proportion to the distance, with a slope per head.

    The slopes of H heads are 2^(-8/H), 2^(-16/H), ..., 2^-8 if H is a power of two. Otherwise, with
    P the largest power of two below H, the first P heads have the slopes of P heads, and the others
    every second slope of 2P heads.
    """

    num_heads: int

    @nn.nowrap
    def slopes(self) -> Float[np.ndarray, " H"]:
        """Returns the slope of each head."""

        def geometric(heads: int) -> Float[np.ndarray, " H"]:
            head = np.arange(1, heads + 1)
            return 2.0 ** (-8 * head / heads)

        power = 2 ** int(math.log2(self.num_heads))
        first = geometric(power)
        others = geometric(2 * power)[::2]
        return np.concatenate([first, others])[: self.num_heads]

    def __call__(self) -> Bias:
        """Returns the bias, -slope * |position of the query - position of the key|."""
        by_head = self.slopes()[None, :, None, None]  # [1, H, 1, 1]
        slopes = jnp.asarray(by_head)  # float64 only where JAX has it

        def bias(
            queries: Int[Array, "#B T"],
            keys: Int[Array, "#B S"],
        ) -> Float[Array, "#B H T S"]:
            query = queries[:, None, :, None]
            key = keys[:, None, None]
            distances = abs(query - key)  # [B, 1, T, S]
            return -slopes * distances.astype(slopes.dtype)

        return bias


class BucketedBias(nn.Module):
    """T5's relative positions (Raffel et al. 2020): a learned bias per head and distance.

    Half of the buckets are for single short distances. The others grow in proportion to the
    distance, and distances of at least ``max_distance`` share the last. Without ``causal``, this
    holds for each half of all buckets: the first is for earlier keys, the second for later ones.
    """

    num_heads: int
    causal: bool
    num_buckets: int = 32
    max_distance: int = 128

    @nn.compact
    def __call__(self) -> Bias:
        initializer = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform")
        shape = (self.num_buckets, self.num_heads)
        table = parameter(self, "table", initializer, shape)
        buckets = self.buckets

        def bias(
            queries: Int[Array, "#B T"],
            keys: Int[Array, "#B S"],
        ) -> Float[Array, "#B H T S"]:
            offsets = keys[:, None] - queries[:, :, None]  # [B, T, S]
            biases = take_rows(table, buckets(offsets))  # [B, T, S, H]
            return jnp.moveaxis(biases, -1, 1)

        return bias

    @nn.nowrap
    def buckets(self, offsets: Int[Array, "*rows"]) -> Int[Array, "*rows"]:
        """Returns the bucket of each offset, the key's position minus the query's."""
        if self.causal:
            count = self.num_buckets
            distances = jnp.maximum(-offsets, 0)
            first_bucket = 0
        else:
            count = self.num_buckets // 2
            distances = abs(offsets)
            first_bucket = count * (offsets > 0)

        # The first half has a bucket for each distance. In the second half, the shortest distances
        # of the buckets are a geometric series from ``exact`` to ``max_distance``.
        exact = count // 2
        steps = count - exact
        step = np.arange(1, steps)
        growth = (self.max_distance / exact) ** (step / steps)
        # Rounding must not raise a power that is a whole number to the next one.
        shortest = np.ceil(exact * growth - 1e-9).astype(np.int32)

        # A distance is in the last of these buckets whose shortest distance it reaches.
        distance = distances[..., None]
        is_reached = distance >= expand_like(jnp.asarray(shortest), distance)
        shared = exact + is_reached.sum(axis=-1)
        return first_bucket + jnp.where(distances < exact, distances, shared)


def _no_positions(length: int, d_model: int) -> Float[np.ndarray, "T D"]:
    return np.zeros((length, d_model), np.float32)


@dataclasses.dataclass(frozen=True)
class PositionalEncoding:
    """A positional encoding; fields that it does not use have their defaults."""

    # Computes the array that is added to embeddings, given length and d_model.
    table: Callable[[int, int], np.ndarray] = _no_positions
    is_learned: bool = False  # A learned parameter is added instead.
    # Rotates queries or keys by their positions, before dot products.
    rotate: Callable[[Array, Array], Array] | None = None
    # Creates the module of the bias of a stack, given num_heads and whether it is causal.
    make_bias: Callable[[int, bool], Any] | None = None


ENCODINGS: dict[Positions, PositionalEncoding] = {
    "sinusoidal": PositionalEncoding(functools.partial(sinusoidal_positions, dtype="float64")),
    "tensor2tensor": PositionalEncoding(tensor2tensor_positions),
    "fairseq": PositionalEncoding(fairseq_positions),
    "learned": PositionalEncoding(is_learned=True),
    "rotary": PositionalEncoding(rotate=rotary_positions),
    "alibi": PositionalEncoding(make_bias=lambda num_heads, causal: LinearBias(num_heads)),
    "relative": PositionalEncoding(make_bias=BucketedBias),
}
