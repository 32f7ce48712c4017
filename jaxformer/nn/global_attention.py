"""Attention with global tokens that have projections of their own (Longformer)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from jaxformer.errors import UserError
from jaxformer.nn.argument_checks import check_activations
from jaxformer.nn.attention import MultiHeadAttention, Projection, Projections
from jaxformer.nn.keys import Keys


class GlobalAttention(MultiHeadAttention):
    """Multi-head attention of Longformer (Beltagy et al. 2020), for whole sequences.

    The keys have ``global_tokens``. Their queries, and the keys and values that these queries see,
    have matrices of their own: "query_global", "key_global" and "value_global". As a key of other
    tokens, a global token is projected like them.

    >>> layer, x = GlobalAttention(num_heads=2), jnp.ones((1, 5, 8))
    >>> keys = Keys.of_sequence(5, window=1, global_tokens=1)
    >>> params = layer.init(jax.random.key(0), x, keys, method="attend")
    >>> layer.apply(params, x, keys, method="attend")[0].shape
    (1, 5, 8)
    """

    fields_read = frozenset(
        {
            "num_heads",
            "d_k",
            "d_v",
            "use_bias",
            "dropout_rate",
            "num_kv_heads",
            "scale",
            "soft_cap",
            "compute_dtype",
        }
    )

    def attend(
        self,
        x: Float[Array, "B T D"],
        keys: Keys,
        memory: None = None,
        *,
        cache: None = None,
        dropout: Int[Array, " B"] | None = None,
    ) -> tuple[Float[Array, "B T D"], None]:
        """Attends from x to itself; the arguments are as for MultiHeadAttention."""
        check_activations("GlobalAttention", "x", x, axes=3)
        if memory is not None or cache is not None:
            raise UserError("GlobalAttention: expected neither a memory nor a cache")

        keys = self._with_rules(keys)
        local = self._projections(x.shape[-1])
        queries = self._queries(x, local)
        key_values = self._key_values(x, local)
        attended, weights = self._attend(queries, key_values, keys, dropout)

        # Global tokens see all others, whatever the window is.
        number = keys.global_tokens
        first = x[:, :number]
        tokens = jax.tree.map(lambda a: a[:, :number], keys.queries)
        seeing_all = dataclasses.replace(keys, queries=tokens, window=None, global_tokens=0)

        whole = self._global_projections(x.shape[-1], local.output)
        queries = self._queries(first, whole)
        key_values = self._key_values(x, whole)
        of_global, global_weights = self._attend(queries, key_values, seeing_all, dropout)

        if weights is not None and global_weights is not None:
            joined = jnp.concatenate([global_weights, weights[:, :, number:]], axis=2)
            self.sow("intermediates", "weights", joined)
        heads = jnp.concatenate([of_global, attended[:, number:]], axis=1)
        return self._project_output(heads, local), None

    @nn.compact
    def _global_projections(self, d_model: int, output: Projection) -> Projections:
        """Returns W^Q, W^K and W^V of the global tokens, and the given W^O."""
        d_k, d_v = self._head_sizes(d_model)

        def make(name: str, heads: int, size: int) -> Projection:
            axes = ("d_model", "heads", None)
            matrix: Any = self._matrix(name, (d_model, heads, size), axes)
            return Projection(matrix, self._bias(name, (heads, size)))

        return Projections(
            query=make("query_global", self.num_heads, d_k),
            key=make("key_global", self._kv_heads, d_k),
            value=make("value_global", self._kv_heads, d_v),
            output=output,
        )
