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
from jaxformer.fields import fields_given
from jaxformer.layout import zeros_for_rows
from jaxformer.nn.arguments import (
    check_activations,
    check_recurrence,
    check_supported,
)
from jaxformer.nn.attention import MultiHeadAttention
from jaxformer.nn.cache import LayerState, Slots
from jaxformer.nn.keys import Keys
from jaxformer.nn.matmul import project
from jaxformer.nn.precision import at_least_float32


def elu_features(x: Float[Array, "*X K"], is_query: bool = False) -> Float[Array, "*X K"]:
    """Returns elu(x) + 1 (Katharopoulos et al. 2020)."""
    return jax.nn.elu(x) + 1


def random_features(x: Array, is_query: bool, num_features: int = 256, seed: int = 0) -> Array:
    """Returns positive random features (Performer, Choromanski et al. 2021).

    They are [..., num_features] of x, [..., K]. Their dot products estimate exp(q . k / sqrt(K))
    without bias, except for a factor of each query.
    """
    size = x.shape[-1]
    rows = np.random.default_rng(seed).normal(size=(num_features, size)).astype(np.float32)
    x = x * size**-0.25
    exponents = x @ rows.T - jnp.square(x).sum(-1, keepdims=True) / 2
    if is_query:  # Prevents overflow; attention divides it out. Keys would need the later ones.
        exponents -= jax.lax.stop_gradient(exponents.max(-1, keepdims=True))
    return jnp.exp(exponents) / num_features**0.5


def _sum_values(q: Array, k: Array, v: Array, causal: bool, chunk: int = 64) -> Array:
    """Returns sums of values, [B, T, H, V], with weights q . k of features, [B, T, H, R]."""
    if not causal:
        return jnp.einsum("bthr,bhrv->bthv", q, jnp.einsum("bshr,bshv->bhrv", k, v))
    (batch, length, heads, _), padding = q.shape, (0, -q.shape[1] % chunk)
    q, k, v = (jnp.pad(a, ((0, 0), padding, (0, 0), (0, 0))) for a in (q, k, v))
    q, k, v = (a.reshape(batch, -1, chunk, heads, a.shape[-1]) for a in (q, k, v))
    states = jnp.einsum("bcshr,bcshv->bchrv", k, v)  # Of each chunk, and then of all before it.
    states = jnp.pad(states[:, :-1].cumsum(1), ((0, 0), (1, 0), *[(0, 0)] * 3))
    weights = jnp.tril(jnp.einsum("bcthr,bcshr->bchts", q, k))
    sums = jnp.einsum("bchts,bcshv->bcthv", weights, v)
    sums += jnp.einsum("bcthr,bchrv->bcthv", q, states)
    return sums.reshape(batch, -1, heads, v.shape[-1])[:, :length]


@flax.struct.dataclass
class LinearCache(LayerState):
    """Sums over the tokens of each beam, of a constant size."""

    state: Float[Array, "B N H R W"]


_REASON = "which only a softmax has"
_FIELDS = {
    "num_heads",
    "d_k",
    "d_v",
    "use_bias",
    "encode_positions",
    "compute_dtype",
    "feature_map",
    # Flax's own.
    "parent",
    "name",
}


class LinearAttention(MultiHeadAttention):
    """Self-attention in linear time, in place of ``MultiHeadAttention`` in a ``Block``.

    It has the same parameters. Keys may be causal; all other rules, such as masks and segments, are
    refused, as are fields of ``MultiHeadAttention`` that only a softmax has.

    Attributes:
      feature_map: Function of queries or keys, [..., K], and whether they are queries, that returns
        nonnegative features, such as :func:`elu_features` and :func:`random_features`.
    """

    feature_map: Callable[[Array, bool], Array] = elu_features

    def attend(
        self, x: Array, keys: Keys, memory: Any = None, *, cache: Any = None, dropout: Any = None
    ) -> tuple[Array, Any]:
        """Attends from x to itself or to a cache; see :meth:`MultiHeadAttention.attend`."""
        check_activations("LinearAttention", "x", x, axes=3)
        self._check_rules(keys, memory, cache)
        slots = keys.slots
        weights = self._projections(x.shape[-1])
        q, k, v = (project(x, *weights[n], self.compute_dtype) for n in ("query", "key", "value"))
        if self.encode_positions is not None:
            q, k = (self.encode_positions(a, keys.queries.positions) for a in (q, k))
        q, k, v = (a.astype(at_least_float32(a)) for a in (q, k, v))
        q, k = self.feature_map(q, True), self.feature_map(k, False)
        v = jnp.concatenate([v, jnp.ones_like(v[..., :1])], -1)  # Sums of ones are denominators.
        if slots is None or slots.is_prompt:
            sums = _sum_values(q, k, v, keys.causal)
        if slots is not None and slots.is_prompt:  # All beams share it.
            kept = (jnp.arange(x.shape[1]) < slots.length)[None, :, None, None]
            cache = LinearCache(cache.state + jnp.einsum("bthr,bthv->bhrv", k * kept, v)[:, None])
        elif slots is not None:
            cache = LinearCache(cache.state + k[..., None] * v[..., None, :])
            sums = jnp.einsum("bnhr,bnhrv->bnhv", q, cache.state)
        y = (sums[..., :-1] / sums[..., -1:]).astype(x.dtype).reshape(*x.shape[:2], -1)
        return project(y, *weights["output"], self.compute_dtype), cache

    def init_cache(self, slots: Slots, d_model: int, dtype: str) -> LinearCache:
        """Returns sums over no tokens, at least float32."""
        d_k, d_v = self._head_sizes(d_model)
        features = self.feature_map(jnp.ones(d_k), False).size
        shape = slots.beam_slots.shape[1], self.num_heads, features, d_v + 1
        sums = jnp.promote_types(dtype, jnp.float32)
        return LinearCache(zeros_for_rows(slots.beam_slots[:, 0, 0], shape, sums))

    def cache_memory(self, memory: Array) -> Any:
        """Refuses a memory."""
        raise UserError(f"LinearAttention: expected no memory, {_REASON}")

    @nn.nowrap
    def _check_rules(self, keys: Keys, memory: Any, cache: Any) -> None:
        """Checks that there are no fields, rules or arguments that the layer would ignore."""
        options = {"state": LinearCache, "rules": {"causal"}, "reason": _REASON}
        check_supported("LinearAttention", fields_given(self), _FIELDS, _REASON)
        check_recurrence("LinearAttention", keys, memory, cache, **options)
        has_starts = keys.slots is not None and keys.slots.starts is not None
        if has_starts or any(t.segments is not None for t in (keys.queries, keys.keys)):
            raise UserError(f"LinearAttention: expected no segments, {_REASON}")
