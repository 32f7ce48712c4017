"""Linear attention: features of queries and keys instead of a softmax, in time O(T)."""

from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float

from jaxformer.errors import UserError
from jaxformer.layout import zeros_for_rows
from jaxformer.nn.argument_checks import (
    check_activations,
    check_recurrence,
)
from jaxformer.nn.attention import MultiHeadAttention, Projections
from jaxformer.nn.cache import LayerState, Slots
from jaxformer.nn.keys import Keys
from jaxformer.nn.matmul import project
from jaxformer.nn.precision import at_least_float32


def elu_features(x: Float[Array, "*X K"], is_query: bool = False) -> Float[Array, "*X K"]:
    """Returns elu(x) + 1 (Katharopoulos et al. 2020)."""
    return jax.nn.elu(x) + 1


def random_features(
    x: Array,
    is_query: bool,
    num_features: int = 256,
    seed: int = 0,
) -> Array:
    """Returns positive random features (Performer, Choromanski et al. 2021).

    They are [..., num_features] of x, [..., K]. Their dot products estimate exp(q . k / sqrt(K))
    without bias, except for a factor of each query.
    """
    size = x.shape[-1]
    normal = np.random.default_rng(seed).normal(size=(num_features, size))
    rows = normal.astype(np.float32)

    # exp(w . x - |x|^2 / 2) of normal vectors w: the mean of the products over w is exp(q . k).
    x = x * size**-0.25
    half_square = jnp.square(x).sum(-1, keepdims=True) / 2
    exponents = x @ rows.T - half_square  # [..., num_features]
    if is_query:
        # Prevents overflow; attention divides it out. Keys would need the later ones.
        largest = exponents.max(-1, keepdims=True)
        exponents -= jax.lax.stop_gradient(largest)
    return jnp.exp(exponents) / num_features**0.5


def _sum_values(
    q: Array,
    k: Array,
    v: Array,
    causal: bool,
    chunk: int = 64,
) -> Array:
    """Returns sums of values, [B, T, H, V], with weights q . k of features, [B, T, H, R]."""
    if not causal:
        state = jnp.einsum("bshr,bshv->bhrv", k, v)
        return jnp.einsum("bthr,bhrv->bthv", q, state)

    batch, length, heads, _ = q.shape
    d_v = v.shape[-1]
    missing = -length % chunk

    def pad(a: Array) -> Array:
        return jnp.pad(a, ((0, 0), (0, missing), (0, 0), (0, 0)))

    def split(a: Array) -> Array:
        """Returns chunks, [B, T, ...] to [B, chunks, chunk, ...]."""
        return a.reshape(batch, -1, chunk, heads, a.shape[-1])

    q, k, v = map(pad, (q, k, v))
    q, k, v = map(split, (q, k, v))

    # The state before each chunk: the sum over all tokens of the chunks before it.
    of_chunk = jnp.einsum("bcshr,bcshv->bchrv", k, v)
    sums_before = of_chunk[:, :-1].cumsum(1)
    padding = [(0, 0)] * 5
    padding[1] = (1, 0)
    states = jnp.pad(sums_before, padding)

    # Within a chunk, weights are computed for each pair of tokens.
    weights = jnp.tril(jnp.einsum("bcthr,bcshr->bchts", q, k))
    sums = jnp.einsum("bchts,bcshv->bcthv", weights, v)
    sums += jnp.einsum("bcthr,bchrv->bcthv", q, states)
    joined = sums.reshape(batch, -1, heads, d_v)
    return joined[:, :length]


@flax.struct.dataclass
class LinearCache(LayerState):
    """Sums over the tokens of each beam, of a constant size."""

    state: Float[Array, "B N H R W"]  # features times values and a one, W = V + 1


_REASON = "which only a softmax has"


class LinearAttention(MultiHeadAttention):
    """Self-attention in linear time, in place of ``MultiHeadAttention`` in a ``Block``.

    It has the same parameters. Keys may be causal; all other rules, such as masks and segments, are
    refused, as are fields of ``MultiHeadAttention`` that only a softmax has.

    Attributes:
      feature_map: Function of queries or keys, [..., K], and whether they are queries, that returns
        nonnegative features, such as :func:`elu_features` and :func:`random_features`.
    """

    reason_to_refuse = _REASON
    fields_read = frozenset(
        {
            "num_heads",
            "d_k",
            "d_v",
            "use_bias",
            "encode_positions",
            "make_qk_norm",
            "compute_dtype",
            "feature_map",
        }
    )

    feature_map: Callable[[Array, bool], Array] = elu_features

    def attend(
        self,
        x: Array,
        keys: Keys,
        memory: Any = None,
        *,
        cache: Any = None,
        dropout: Any = None,
    ) -> tuple[Array, Any]:
        """Attends from x to itself or to a cache; see :meth:`MultiHeadAttention.attend`."""
        check_activations("LinearAttention", "x", x, axes=3)
        self._check_rules(keys, memory, cache)
        batch, length, d_model = x.shape
        weights = self._projections(d_model)
        q, k, v = self._features(x, keys, weights)

        slots = keys.slots
        if slots is None:
            sums = _sum_values(q, k, v, causal=keys.causal)
        elif slots.is_prompt:
            sums = _sum_values(q, k, v, causal=keys.causal)
            # All beams share the state after the prompt.
            is_kept = jnp.arange(length) < slots.length  # [T]
            kept = k * is_kept[None, :, None, None]
            of_prompt = jnp.einsum("bthr,bthv->bhrv", kept, v)
            cache = LinearCache(cache.state + of_prompt[:, None])
        else:
            # One more token of each beam.
            of_token = k[..., None] * v[..., None, :]  # [B, N, H, R, W]
            cache = LinearCache(cache.state + of_token)
            sums = jnp.einsum("bnhr,bnhrv->bnhv", q, cache.state)

        # sum_s (q . k_s) v_s / sum_s (q . k_s)
        numerators = sums[..., :-1]
        denominators = sums[..., -1:]
        heads = (numerators / denominators).astype(x.dtype)  # [B, T, H, V]

        concatenated = heads.reshape(batch, length, -1)
        return project(concatenated, *weights.output, self.compute_dtype), cache

    def _features(
        self,
        x: Array,
        keys: Keys,
        weights: Projections,
    ) -> tuple[Array, Array, Array]:
        """Returns features of queries and keys, and values with a last entry of 1."""
        q = self._queries(x, weights)
        key_values = self._key_values(x, weights)
        k = key_values.keys
        v = key_values.values
        if self.encode_positions is not None:
            q = self.encode_positions(q, keys.queries.positions)
            k = self.encode_positions(k, keys.queries.positions)

        q = q.astype(at_least_float32(q))
        k = k.astype(at_least_float32(k))
        v = v.astype(at_least_float32(v))
        q = self.feature_map(q, True)
        k = self.feature_map(k, False)

        ones = jnp.ones_like(v[..., :1])  # Sums of ones are denominators.
        return q, k, jnp.concatenate([v, ones], -1)

    def init_cache(
        self,
        slots: Slots,
        d_model: int,
        dtype: str,
    ) -> LinearCache:
        """Returns sums over no tokens, at least float32."""
        d_k, d_v = self._head_sizes(d_model)
        features = self.feature_map(jnp.ones(d_k), False).size
        beams = slots.beam_slots.shape[1]
        shape = beams, self.num_heads, features, d_v + 1

        rows = slots.beam_slots[:, 0, 0]
        wide = jnp.promote_types(dtype, jnp.float32)
        return LinearCache(zeros_for_rows(rows, shape, wide))

    def cache_memory(self, memory: Array, d_model: int | None = None) -> Any:
        """Refuses a memory."""
        raise UserError(f"LinearAttention: expected no memory, {_REASON}")

    @nn.nowrap
    def _check_rules(self, keys: Keys, memory: Any, cache: Any) -> None:
        """Checks that there are no rules or arguments that the layer would ignore."""
        owner = "LinearAttention"
        check_recurrence(
            owner,
            keys,
            memory,
            cache=cache,
            state=LinearCache,
            rules={"causal"},
            reason=_REASON,
        )

        has_starts = keys.slots is not None and keys.slots.starts is not None
        if has_starts:  # The mask of a step hides what comes before them.
            raise UserError(f"LinearAttention: expected no segments, {_REASON}")
