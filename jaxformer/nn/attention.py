"""Multi-head attention (section 3.2.2), for whole sequences and for decoding with a cache."""

import dataclasses
from collections.abc import Callable

from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from jaxformer.errors import UserError
from jaxformer.nn.arguments import check_activations, check_mask, check_sizes
from jaxformer.nn.cache import KVCache, MemoryCache, Slots
from jaxformer.nn.dropout import Dropout, dropout_rows
from jaxformer.nn.kernels import KeyValues, attend, attention
from jaxformer.nn.keys import Keys, Tokens
from jaxformer.nn.matmul import project
from jaxformer.nn.parameters import parameter
from jaxformer.nn.precision import ComputeDtype, Int8Matrix, matmul_dtype

# Matrix and bias of each projection, "query", "key", "value" and "output".
_Projections = dict[str, tuple[Array | Int8Matrix, Array | None]]


class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O (section 3.2.2).

    ``d_model`` is the width of the inputs. W^Q, W^K and W^V are [D, H, K or V], W^O is [H * V, D].
    The weights, [B, H, T, S], are sown as the intermediate "weights": apply the module with
    ``mutable=["intermediates"]`` to get them.

    Departs from the paper: ``use_bias``, ``dropout_rate``, ``encode_positions``, ``num_kv_heads``,
    ``scale``, ``soft_cap`` and ``make_bias``, all optional.

    >>> import jax, jax.numpy as jnp
    >>> layer, x = MultiHeadAttention(num_heads=8), jnp.ones((1, 3, 512))
    >>> params = layer.init(jax.random.key(0), x)
    >>> layer.apply(params, x).shape
    (1, 3, 512)

    Attributes:
      num_heads: Number of heads, h.
      d_k: Size of the queries and keys of a head; ``d_model / num_heads`` when None.
      d_v: Size of the values of a head; ``d_model / num_heads`` when None.
      use_bias: Adds biases to all four projections.
      dropout_rate: Dropout rate of the attention weights.
      encode_positions: Function of queries or keys, [B, T, H, K], and their positions, [B or 1, T],
        applied before the dot products; for instance
        :func:`~jaxformer.nn.positions.rotary_positions`. Not applied when attending to a memory.
      num_kv_heads: Number of heads of keys and values, a divisor of ``num_heads``; ``num_heads``
        when None, 1 for multi-query attention. A cache holds only these heads.
      scale: Multiplies the dot products; ``1 / sqrt(d_k)`` when None. T5 has 1.
      soft_cap: Bounds the scores smoothly, as Gemma 2 does; see :class:`~jaxformer.nn.keys.Keys`.
      make_bias: Creates the module that returns the :data:`~jaxformer.nn.keys.Bias` of the scores
        of this layer, in place of the bias of the stack.
      compute_dtype: Dtype of the inputs of matrix multiplications.
    """

    num_heads: int
    d_k: int | None = None
    d_v: int | None = None
    use_bias: bool = False
    dropout_rate: float = 0.0
    encode_positions: Callable[[Array, Array], Array] | None = None
    num_kv_heads: int | None = None
    scale: float | None = None
    soft_cap: float | None = None
    make_bias: Callable[[], nn.Module] | None = None
    compute_dtype: ComputeDtype = "float32"

    def setup(self) -> None:
        check_sizes(self, "num_heads", "d_k", "d_v", "num_kv_heads")
        if self.num_heads % self._kv_heads:
            raise UserError(
                f"MultiHeadAttention: num_kv_heads={self.num_kv_heads} must divide num_heads="
                f"{self.num_heads}"
            )
        self.dropout = Dropout(self.dropout_rate)
        self.bias = None if self.make_bias is None else self.make_bias()

    def __call__(
        self,
        x: Float[Array, "B T D"],
        memory: Float[Array, "B S D"] | None = None,
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
        seen = x if memory is None else memory
        if mask is not None:
            check_mask("MultiHeadAttention", mask, x, seen)
        queries = Tokens.of(x.shape[1], positions=positions)
        others = queries if memory is None else Tokens.of(seen.shape[1])
        dropout = dropout_rows(x.shape[0], deterministic, row_ids)
        keys = Keys(queries, others, mask)
        return self.attend(x, keys, memory, dropout=dropout)[0]

    def attend(
        self,
        x: Float[Array, "B T D"],
        keys: Keys,
        memory: Float[Array, "B S D"] | None = None,
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
            check_activations("MultiHeadAttention", "memory", memory, x.shape[-1], axes=3)
        keys = self._with_rules(keys)
        weights, slots = self._projections(x.shape[-1]), keys.slots
        queries = project(x, *weights["query"], self.compute_dtype)
        if cache is not None and slots is None:
            raise UserError("MultiHeadAttention: a cache needs keys of its slots, from Slots.keys")
        if cache is not None and memory is not None:
            raise UserError(
                "MultiHeadAttention: expected no memory with a cache, which holds the keys and "
                "values that are attended to"
            )
        if isinstance(cache, MemoryCache):
            dtype = matmul_dtype(self.compute_dtype)
            key_values = cache.as_key_values(dtype) if slots.is_prompt else cache
        else:
            key_values = self._key_values(x if memory is None else memory, weights)
            if self.encode_positions is not None and memory is None:
                rotate, positions = self.encode_positions, keys.queries.positions
                queries = rotate(queries, positions)
                rotated = rotate(key_values.keys, positions)
                key_values = dataclasses.replace(key_values, keys=rotated)
            if cache is not None:
                cache = cache.append(key_values, slots)
                key_values = key_values if slots.is_prompt else cache
        drop = self.dropout.row_dropout(dropout)
        if isinstance(key_values, KeyValues) and not self.is_mutable_collection("intermediates"):
            attended = attention(queries, key_values, keys, drop)
        else:
            attended, shown = attend(queries, key_values, keys, drop)
            self.sow("intermediates", "weights", shown)
        heads = attended.reshape(*attended.shape[:2], attended.shape[2] * attended.shape[3])
        return project(heads, *weights["output"], self.compute_dtype), cache

    def init_cache(self, slots: Slots, d_model: int, dtype: str) -> KVCache:
        """Returns an empty cache for self-attention to activations of this width and dtype."""
        return KVCache.empty(slots, self._kv_heads, *self._head_sizes(d_model), dtype)

    def cache_memory(self, memory: Float[Array, "B S D"]) -> MemoryCache:
        """Returns the cached keys and values of a memory, for all decoding steps."""
        return MemoryCache.of(self._key_values(memory, self._projections(memory.shape[-1])))

    def _with_rules(self, keys: Keys) -> Keys:
        """Returns the keys with the rules of this layer."""
        for name in ("scale", "soft_cap"):
            own, given = getattr(self, name), getattr(keys, name)
            if None not in (own, given) and own != given:
                raise UserError(f"MultiHeadAttention: got {name}={own}, and keys with {given}")
        bias = None if self.bias is None else self.bias()
        rules = {"scale": self.scale, "soft_cap": self.soft_cap, "bias": bias}
        return dataclasses.replace(keys, **{n: v for n, v in rules.items() if v is not None})

    def _key_values(self, x: Array, weights: _Projections) -> KeyValues:
        keys, values = (project(x, *weights[name], self.compute_dtype) for name in ("key", "value"))
        return KeyValues(keys, values, matmul_dtype(self.compute_dtype))

    @property
    def _kv_heads(self) -> int:
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    def _head_sizes(self, d_model: int) -> tuple[int, int]:
        if (self.d_k is None or self.d_v is None) and d_model % self.num_heads:
            raise UserError(
                f"MultiHeadAttention: num_heads={self.num_heads} must divide the width of the "
                f"inputs, {d_model}, unless d_k and d_v are given"
            )
        default = d_model // self.num_heads
        return self.d_k or default, self.d_v or default

    @nn.compact
    def _projections(self, d_model: int) -> _Projections:
        (h, shared), (k, v) = (self.num_heads, self._kv_heads), self._head_sizes(d_model)
        inputs = {"query": (d_model, h, k)}
        inputs |= {"key": (d_model, shared, k), "value": (d_model, shared, v)}
        shapes = {**inputs, "output": (h * v, d_model)}
        matrices = {}
        for name, shape in shapes.items():
            outputs = tuple(range(1, len(shape)))
            glorot = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform", 0, outputs)
            axes = ("d_model", "heads", None) if name in inputs else ("heads", "d_model")
            matrices[name] = parameter(self, name, glorot, shape, axes, "matrix")
        biases = dict.fromkeys(shapes)
        if self.use_bias:
            zeros = nn.initializers.zeros
            biases = {n: parameter(self, f"{n}_bias", zeros, s[1:]) for n, s in shapes.items()}
        return {name: (matrices[name], biases[name]) for name in shapes}
