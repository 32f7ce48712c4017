"""Multi-head attention (section 3.2.2), for whole sequences and for decoding with a cache."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple

from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from jaxformer.errors import UserError
from jaxformer.fields import fields_given
from jaxformer.nn.argument_checks import (
    check_activations,
    check_mask,
    check_sizes,
    check_supported,
)
from jaxformer.nn.cache import KVCache, MemoryCache, Slots
from jaxformer.nn.dropout import Dropout, dropout_rows
from jaxformer.nn.kernels import KeyValues, KeyValueSource, attend, attention
from jaxformer.nn.keys import Keys, Tokens
from jaxformer.nn.matmul import project
from jaxformer.nn.parameters import parameter
from jaxformer.nn.precision import ComputeDtype, Int8Matrix, matmul_dtype

_FIELDS_OF_FLAX = {"parent", "name"}


class Projection(NamedTuple):
    """The parameters of a linear projection, the arguments of :func:`~jaxformer.nn.project`."""

    matrix: Array | Int8Matrix
    bias: Array | None


class Projections(NamedTuple):
    """W^Q, W^K, W^V and W^O, and their biases."""

    query: Projection
    key: Projection
    value: Projection
    output: Projection


class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O (section 3.2.2).

    ``d_model`` is the width of the inputs. W^Q, W^K and W^V are [D, H, K or V], W^O is [H * V, D].
    The weights, [B, H, T, S], are sown as the intermediate "weights": apply the module with
    ``mutable=["intermediates"]`` to get them.

    Departs from the paper: ``use_bias``, ``dropout_rate``, ``encode_positions``, ``num_kv_heads``,
    ``make_qk_norm``, ``scale``, ``soft_cap``, ``make_bias``, ``memory_width``, ``value_gain`` and
    ``output_gain``, all optional.

    >>> import jax, jax.numpy as jnp
    >>> layer, x = MultiHeadAttention(num_heads=8), jnp.ones((1, 3, 512))
    >>> params = layer.init(jax.random.key(0), x)
    >>> layer.apply(params, x).shape
    (1, 3, 512)

    Attributes:
      num_heads: Number of heads, h.
      d_k: Size of the queries and keys of a head; ``d_model / num_heads`` when None.
      d_v: Size of the values of a head; ``d_model / num_heads`` when None.
      use_bias: Adds biases to all four projections, or to the last one only if "output", as in
        GPT-Neo, or to all but the keys' if "except_key", as in Whisper: a bias of keys adds the
        same number to all scores of a query.
      dropout_rate: Dropout rate of the attention weights.
      encode_positions: Function of queries or keys, [B, T, H, K], and their positions, [B or 1, T],
        applied before the dot products; for instance
        :func:`~jaxformer.nn.positions.rotary_positions`. Not applied when attending to a memory.
      num_kv_heads: Number of heads of keys and values, a divisor of ``num_heads``; ``num_heads``
        when None, 1 for multi-query attention. A cache holds only these heads.
      make_qk_norm: Creates the module that normalizes the queries of each head, and the module that
        normalizes the keys, given [..., H, K]: QK-norm (Henry et al. 2020), for instance
        :class:`~jaxformer.nn.RMSNorm` as in Qwen3. Applied before ``encode_positions``, and when
        attending to a memory, too; None leaves queries and keys as they are.
      scale: Multiplies the dot products; ``1 / sqrt(d_k)`` when None. T5 has 1.
      soft_cap: Bounds the scores smoothly, as Gemma 2 does; see :class:`~jaxformer.nn.keys.Keys`.
      make_bias: Creates the module that returns the :data:`~jaxformer.nn.keys.Bias` of the scores
        of this layer, in place of the bias of the stack.
      memory_width: Width of the memory that it attends to; ``d_model`` when None.
      value_gain: Factor on the initial values of the matrix of the values.
      output_gain: The same for the output matrix.
      compute_dtype: Dtype of the inputs of matrix multiplications.
      fields_read: Names of the fields that a subclass reads, so that all others are refused; None
        for all fields. Not itself a field.
      reason_to_refuse: What messages say about the others.
    """

    fields_read: ClassVar[frozenset[str] | None] = None
    reason_to_refuse: ClassVar[str] = "which it would ignore"

    num_heads: int
    d_k: int | None = None
    d_v: int | None = None
    use_bias: bool | Literal["output", "except_key"] = False
    dropout_rate: float = 0.0
    encode_positions: Callable[[Array, Array], Array] | None = None
    num_kv_heads: int | None = None
    make_qk_norm: Callable[[], nn.Module] | None = None
    scale: float | None = None
    soft_cap: float | None = None
    make_bias: Callable[[], nn.Module] | None = None
    memory_width: int | None = None
    value_gain: float = 1.0
    output_gain: float = 1.0
    compute_dtype: ComputeDtype = "float32"

    def setup(self) -> None:
        if self.fields_read is not None:
            check_supported(
                type(self).__name__,
                fields_given(self),
                self.fields_read | _FIELDS_OF_FLAX,
                reason=self.reason_to_refuse,
            )

        check_sizes(self, "num_heads", "d_k", "d_v", "num_kv_heads", "memory_width")
        if self.num_heads % self._kv_heads:
            raise UserError(
                f"MultiHeadAttention: num_kv_heads={self.num_kv_heads} must divide num_heads="
                f"{self.num_heads}"
            )

        self.dropout = Dropout(self.dropout_rate)
        self.bias = None if self.make_bias is None else self.make_bias()
        self.query_norm = None if self.make_qk_norm is None else self.make_qk_norm()
        self.key_norm = None if self.make_qk_norm is None else self.make_qk_norm()

    def __call__(
        self,
        x: Float[Array, "B T D"],
        memory: Float[Array, "B S M"] | None = None,
        mask: Bool[Array, "#B #H #T #S"] | None = None,
        deterministic: bool = True,
        *,
        positions: Int[Array, "#B T"] | None = None,
        row_ids: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T D"]:
        """Attends from x to itself or to a memory, given plain arrays.

        Args:
          x: Activations of the queries.
          memory: Activations of the keys and values; x when None.
          mask: True where a query may attend; everywhere when None.
          deterministic: False enables dropout, and needs ``rngs={"dropout": key}``.
          positions: Position of every token of x in its sequence; 0, 1, ... when None.
          row_ids: Index of each row in the global batch, for dropout; 0, 1, ... when None.
        """
        check_activations("MultiHeadAttention", "x", x, axes=3)
        batch, length, _ = x.shape
        seen = x if memory is None else memory
        if mask is not None:
            check_mask("MultiHeadAttention", mask, x, seen)

        queries = Tokens.of(length, positions=positions)
        others = queries if memory is None else Tokens.of(seen.shape[1])
        keys = Keys(queries, others, mask)

        dropout = dropout_rows(batch, deterministic, row_ids)
        attended, _ = self.attend(x, keys, memory, dropout=dropout)
        return attended

    def attend(
        self,
        x: Float[Array, "B T D"],
        keys: Keys,
        memory: Float[Array, "B S M"] | None = None,
        *,
        cache: KVCache | MemoryCache | None = None,
        dropout: Int[Array, " B"] | None = None,
    ) -> tuple[Float[Array, "B T D"], KVCache | MemoryCache | None]:
        """Attends from x to itself, to a memory, or to a cache.

        Args:
          x: Activations of the queries: whole sequences, or new tokens as
            :class:`~jaxformer.nn.Slots` describes.
          keys: Visible keys of each query; for a cache, from :meth:`~jaxformer.nn.Slots.keys`.
          memory: Activations of the keys and values; x when None.
          cache: From :meth:`init_cache` or :meth:`cache_memory`, or returned by the previous call.
          dropout: As for :class:`~jaxformer.nn.Dropout`.

        Returns:
          Activations, and the updated cache.
        """
        check_activations("MultiHeadAttention", "x", x, axes=3)
        if memory is not None:
            width = self._memory_width(x.shape[-1])
            check_activations("MultiHeadAttention", "memory", memory, width, axes=3)

        keys = self._with_rules(keys)
        weights = self._projections(x.shape[-1])
        queries = self._queries(x, weights)  # [B, T, H, K]

        slots = keys.slots
        if cache is not None:
            self._check_cached(keys, memory)

        key_values: KeyValueSource
        if isinstance(cache, MemoryCache):
            # Steps read the cache as it is. The many queries of a prompt need matmuls.
            dtype = matmul_dtype(self.compute_dtype)
            key_values = cache.as_key_values(dtype) if slots.is_prompt else cache
        elif memory is not None:
            key_values = self._key_values(memory, weights)
        else:
            width = self._memory_width(x.shape[-1])
            check_activations("MultiHeadAttention", "x", x, width)
            new = self._key_values(x, weights)  # [B, T, H, K] and [B, T, H, V]
            if self.encode_positions is not None:
                positions = keys.queries.positions
                queries = self.encode_positions(queries, positions)
                new = dataclasses.replace(new, keys=self.encode_positions(new.keys, positions))

            key_values = new
            if cache is not None:
                cache = cache.append(new, slots)
                # The tokens of a prompt are all of its keys: the cache was empty.
                key_values = new if slots.is_prompt else cache

        heads, recorded = self._attend(queries, key_values, keys, dropout)
        if recorded is not None:
            self.sow("intermediates", "weights", self._select_weights(recorded, keys))
        return self._project_output(heads, weights), cache

    def init_cache(
        self,
        slots: Slots,
        d_model: int,
        dtype: str,
    ) -> KVCache:
        """Returns an empty cache for self-attention to activations of this width and dtype."""
        d_k, d_v = self._head_sizes(d_model)
        return KVCache.empty(
            slots,
            self._kv_heads,
            d_k=d_k,
            d_v=d_v,
            dtype=dtype,
        )

    def cache_memory(
        self,
        memory: Float[Array, "B S M"],
        d_model: int | None = None,
    ) -> MemoryCache:
        """Returns the cached keys and values of a memory, for all decoding steps.

        ``d_model`` is the width of the queries; the memory's when None.
        """
        weights = self._projections(d_model or memory.shape[-1])
        return MemoryCache.of(self._key_values(memory, weights))

    @nn.nowrap
    def _check_cached(self, keys: Keys, memory: Array | None) -> None:
        """Checks the other arguments of a call with a cache."""
        if keys.slots is None:
            raise UserError("MultiHeadAttention: a cache needs keys of its slots, from Slots.keys")
        if memory is not None:
            raise UserError(
                "MultiHeadAttention: expected no memory with a cache, which holds the keys and "
                "values that are attended to"
            )

    def _attend(
        self,
        queries: Float[Array, "B T H K"],
        key_values: KeyValueSource,
        keys: Keys,
        dropout: Int[Array, " B"] | None,
    ) -> tuple[Float[Array, "B T H V"], Float[Array, "B H T S"] | None]:
        """Returns head_1, ..., head_h (equation 1), and the weights if they are wanted."""
        drop = self.dropout.row_dropout(dropout)
        if keys.blocks is not None and dropout is not None:
            drawn = keys.blocks.draw(self.make_rng("dropout"), queries.shape[1])
            keys = dataclasses.replace(keys, blocks=drawn)

        wants_weights = self.is_mutable_collection("intermediates")
        if isinstance(key_values, KeyValues) and not wants_weights:
            return attention(queries, key_values, keys, drop), None
        return attend(queries, key_values, keys, drop)

    def _project_output(
        self, heads: Float[Array, "B T H V"], weights: Projections
    ) -> Float[Array, "B T D"]:
        """Returns Concat(head_1, ..., head_h) W^O."""
        batch, length, num_heads, d_v = heads.shape
        concatenated = heads.reshape(batch, length, num_heads * d_v)
        return project(concatenated, *weights.output, self.compute_dtype)

    @nn.nowrap
    def _select_weights(
        self, weights: Float[Array, "B H T S"], keys: Keys
    ) -> Float[Array, "B H T S"]:
        """Returns the weights to sow; a subclass may have keys that are no tokens."""
        return weights

    def _with_rules(self, keys: Keys) -> Keys:
        """Returns the keys with the rules of this layer."""
        rules: dict[str, Any] = {}
        for name in ("scale", "soft_cap"):
            own = getattr(self, name)
            given = getattr(keys, name)
            if own is None:
                continue
            if given is not None and own != given:
                raise UserError(f"MultiHeadAttention: got {name}={own}, and keys with {given}")
            rules[name] = own

        # The bias of the layer takes the place of the bias of the stack.
        if self.bias is not None:
            rules["bias"] = self.bias()
        return dataclasses.replace(keys, **rules)

    def _queries(self, x: Float[Array, "B T D"], weights: Projections) -> Float[Array, "B T H K"]:
        queries = project(x, *weights.query, self.compute_dtype)
        return queries if self.query_norm is None else self.query_norm(queries)

    def _key_values(self, x: Float[Array, "B S D"], weights: Projections) -> KeyValues:
        keys = project(x, *weights.key, self.compute_dtype)
        if self.key_norm is not None:
            keys = self.key_norm(keys)
        values = project(x, *weights.value, self.compute_dtype)

        dtype = matmul_dtype(self.compute_dtype)
        return KeyValues(keys, values, dtype)

    @property
    def _kv_heads(self) -> int:
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    def _head_sizes(self, d_model: int) -> tuple[int, int]:
        """Returns d_k and d_v, with the default applied."""
        needs_default = self.d_k is None or self.d_v is None
        if needs_default and d_model % self.num_heads:
            raise UserError(
                f"MultiHeadAttention: num_heads={self.num_heads} must divide the width of the "
                f"inputs, {d_model}, unless d_k and d_v are given"
            )

        default = d_model // self.num_heads
        return self.d_k or default, self.d_v or default

    @nn.nowrap
    def _memory_width(self, d_model: int) -> int:
        """Returns the width of what is attended to, with the default applied."""
        return d_model if self.memory_width is None else self.memory_width

    @nn.compact
    def _projections(self, d_model: int) -> Projections:
        heads = self.num_heads
        kv_heads = self._kv_heads
        d_k, d_v = self._head_sizes(d_model)

        # The order of declarations decides which random numbers a parameter gets.
        inputs = ("d_model", "heads", None)
        query = self._matrix("query", (d_model, heads, d_k), inputs)
        width = self._memory_width(d_model)
        key = self._matrix("key", (width, kv_heads, d_k), inputs)
        value = self._matrix("value", (width, kv_heads, d_v), inputs, self.value_gain)
        outputs = ("heads", "d_model")
        output = self._matrix("output", (heads * d_v, d_model), outputs, self.output_gain)

        return Projections(
            query=Projection(query, self._bias("query", (heads, d_k))),
            key=Projection(key, self._bias("key", (kv_heads, d_k))),
            value=Projection(value, self._bias("value", (kv_heads, d_v))),
            output=Projection(output, self._bias("output", (d_model,))),
        )

    def _matrix(
        self,
        name: str,
        shape: tuple[int, ...],
        axes: tuple[str | None, ...],
        gain: float = 1.0,
    ) -> Any:
        outputs = tuple(range(1, len(shape)))
        glorot = nn.initializers.variance_scaling(
            scale=gain**2,
            mode="fan_avg",
            distribution="uniform",
            in_axis=0,
            out_axis=outputs,
        )
        return parameter(self, name, glorot, shape, axes=axes, role="matrix")

    def _bias(self, name: str, shape: tuple[int, ...]) -> Any:
        is_among_all = self.use_bias == "except_key" and name != "key"
        has_bias = is_among_all or self.use_bias in (True, name)
        if not has_bias:
            return None
        return parameter(self, f"{name}_bias", nn.initializers.zeros, shape)
