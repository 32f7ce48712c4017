"""The layer of the paper (section 3.1): sub-layers with residual connections."""

from collections.abc import Callable
from typing import Any

from flax import linen as nn
from jaxtyping import Array, Float, Int

from jaxformer.errors import UserError
from jaxformer.layout import expand_like
from jaxformer.nn.argument_checks import check_activations, check_choice
from jaxformer.nn.cache import LayerState, Slots
from jaxformer.nn.dropout import Dropout
from jaxformer.nn.keys import Keys, Memory
from jaxformer.nn.norm import LayerNorm
from jaxformer.nn.parameters import parameter

LayerCache = dict[str, LayerState]


class Residual(nn.Module):
    """Residual connection with dropout and layer norm, in post-norm or pre-norm order.

    "post" (sections 3.1 and 5.4): LayerNorm(x + Dropout(Sublayer(x))).
    "pre": x + Dropout(Sublayer(LayerNorm(x))).
    Departs from the paper: ``norm_position="pre"``, ``scale`` and ``input_scale``, all optional.

    Attributes:
      norm_position: "post" or "pre".
      dropout_rate: Dropout rate of the output of the sub-layer.
      make_norm: Creates the norm; takes its ``name``.
      scale: Initial value of the learned factors, one for each feature, that multiply the output of
        the sub-layer: layer scale (Touvron et al. 2021). None for no factors.
      input_scale: Factor on x in post-norm order, alpha of DeepNorm (Wang et al. 2022).
    """

    norm_position: str = "post"
    dropout_rate: float = 0.0
    make_norm: Callable[..., nn.Module] = LayerNorm
    scale: float | None = None
    input_scale: float = 1.0

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T D"],
        sublayer: Callable[[Float[Array, "B T D"]], Float[Array, "B T D"]],
        dropout: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T D"]:
        """Applies ``sublayer`` to x; ``dropout`` is as for :class:`~jaxformer.nn.Dropout`."""
        check_choice(self, "norm_position", ("post", "pre"))
        norm: Callable = self.make_norm(name="norm")
        drop = Dropout(self.dropout_rate)

        if self.norm_position == "pre":
            if self.input_scale != 1:
                raise UserError(
                    f"Residual: input_scale={self.input_scale} needs norm_position=post"
                )
            return x + drop(self._scale_output(sublayer(norm(x))), dropout)

        added = drop(self._scale_output(sublayer(x)), dropout)
        if self.input_scale != 1:
            x = self.input_scale * x
        return norm(x + added)

    def _scale_output(self, y: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Returns the output of the sub-layer times the factors, if there are any."""
        if self.scale is None:
            return y
        initializer = nn.initializers.constant(self.scale)
        factors = parameter(self, "scale", initializer, (y.shape[-1],))
        return y * expand_like(factors.astype(y.dtype), y)


class Block(nn.Module):
    """Self-attention, cross-attention if there is a memory, and a feed-forward network.

    The encoder's layer is ``Block(MultiHeadAttention(8), FeedForward(2048))``. The decoder's layer
    also has a ``cross_attention``, and is called with causal keys.

    Attributes:
      self_attention: A :class:`~jaxformer.nn.attention.MultiHeadAttention`, or another module with
        the same ``attend``.
      feed_forward: A :class:`~jaxformer.nn.feed_forward.FeedForward`, or any module of x.
      cross_attention: Attention to a memory; None for a block without one.
      make_residual: Creates the residual connection of each sub-layer.
      is_parallel: Self-attention and the feed-forward network are one sub-layer, the sum of both
        for the same input, as in GPT-J.
    """

    self_attention: nn.Module
    feed_forward: nn.Module
    cross_attention: nn.Module | None = None
    make_residual: Callable[[], Residual] = Residual
    is_parallel: bool = False

    def setup(self) -> None:
        if self.is_parallel and self.cross_attention is not None:
            raise UserError("Block: expected no cross_attention with is_parallel")

        self.self_attention_residual = self.make_residual()
        if self.cross_attention is not None:
            self.cross_attention_residual = self.make_residual()
        if not self.is_parallel:
            self.feed_forward_residual = self.make_residual()

    def __call__(
        self,
        x: Float[Array, "B T D"],
        keys: Keys | None = None,
        memory: Memory | None = None,
        *,
        dropout: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T D"]:
        """Runs the block over whole sequences. Arguments as for :meth:`run`."""
        return self.run(x, keys, memory, dropout=dropout)[0]

    def run(
        self,
        x: Float[Array, "B T D"],
        keys: Keys | None = None,
        memory: Memory | None = None,
        *,
        cache: LayerCache | None = None,
        dropout: Int[Array, " B"] | None = None,
    ) -> tuple[Float[Array, "B T D"], LayerCache]:
        """Runs the block over whole sequences, or over new tokens with a cache.

        Args:
          x: Activations.
          keys: The tokens that each token may see; all when None.
          memory: Memory that cross-attention attends to.
          cache: From :meth:`init_cache`, or returned by the previous call.
          dropout: As for :class:`~jaxformer.nn.Dropout`.

        Returns:
          Activations, and the updated cache, which is empty without one.
        """
        check_activations("Block", "x", x, axes=3)
        keys = Keys.of_sequence(x.shape[1]) if keys is None else keys
        new_cache: LayerCache = {}

        def attend(
            name: str,
            x: Array,
            keys: Keys,
            memory: Array | None = None,
        ) -> Array:
            own = None if cache is None else cache[name]
            attention: Any = getattr(self, name)
            y, new = attention.attend(x, keys, memory, cache=own, dropout=dropout)

            if new is not None:
                new_cache[name] = new
            return y

        def attend_to_itself(x: Array) -> Array:
            return attend("self_attention", x, keys)

        self._check_memory(memory)
        if self.is_parallel:

            def both(x: Array) -> Array:
                return attend_to_itself(x) + self.feed_forward(x)

            return self.self_attention_residual(x, both, dropout), new_cache

        x = self.self_attention_residual(x, attend_to_itself, dropout)

        if self.cross_attention is not None and memory is not None:

            def attend_to_memory(x: Array) -> Array:
                return attend("cross_attention", x, memory.keys, memory=memory.activations)

            x = self.cross_attention_residual(x, attend_to_memory, dropout)

        x = self.feed_forward_residual(x, self.feed_forward, dropout)
        return x, new_cache

    def init_cache(
        self,
        slots: Slots,
        memory: Float[Array, "B S D"] | None,
        d_model: int,
        dtype: str,
    ) -> LayerCache:
        """Returns a cache without tokens, which already holds the keys and values of the memory."""
        self._check_memory(memory)
        attention: Any = self.self_attention
        cache: LayerCache = {"self_attention": attention.init_cache(slots, d_model, dtype)}

        if self.cross_attention is not None:
            cross: Any = self.cross_attention
            cache["cross_attention"] = cross.cache_memory(memory, d_model)
        return cache

    @nn.nowrap
    def _check_memory(self, memory: Any) -> None:
        if self.cross_attention is not None and memory is None:
            raise UserError("Block: cross-attention needs a memory, got None")
        if self.cross_attention is None and memory is not None:
            raise UserError("Block: expected no memory, which needs a cross_attention")
