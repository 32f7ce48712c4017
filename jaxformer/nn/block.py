"""The layer of the paper (section 3.1): sub-layers with residual connections."""

from collections.abc import Callable
from typing import Any

from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from jaxformer.nn.arguments import check_activations, check_choice
from jaxformer.nn.cache import KVCache, MemoryCache, Slots
from jaxformer.nn.dropout import Dropout
from jaxformer.nn.norm import LayerNorm

LayerCache = dict[str, KVCache | MemoryCache]


class Residual(nn.Module):
    """Residual connection with dropout and layer norm, in post-norm or pre-norm order.

    "post" (sections 3.1 and 5.4): LayerNorm(x + Dropout(Sublayer(x))).
    "pre": x + Dropout(Sublayer(LayerNorm(x))).
    Departs from the paper: ``norm_position="pre"``, which is optional.

    Attributes:
      norm_position: "post" or "pre".
      dropout_rate: Dropout rate of the output of the sub-layer.
      make_norm: Creates the norm; takes its ``name``.
    """

    norm_position: str = "post"
    dropout_rate: float = 0.0
    make_norm: Callable[..., nn.Module] = LayerNorm

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T D"],
        sublayer: Callable[[Float[Array, "B T D"]], Float[Array, "B T D"]],
        deterministic: bool = True,
        *,
        row_ids: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T D"]:
        """Applies ``sublayer`` to x within the residual connection.

        Raises:
          UserError: There is no such ``norm_position``.
        """
        check_choice(self, "norm_position", ("post", "pre"))
        norm: Callable = self.make_norm(name="norm")
        dropout = Dropout(self.dropout_rate)
        if self.norm_position == "pre":
            return x + dropout(sublayer(norm(x)), deterministic, row_ids=row_ids)
        return norm(x + dropout(sublayer(x), deterministic, row_ids=row_ids))


class Block(nn.Module):
    """Self-attention, cross-attention if there is a memory, and a feed-forward network.

    The encoder's layer is ``Block(MultiHeadAttention(8), FeedForward(2048))``. The decoder's layer
    also has a ``cross_attention``, and is called with a causal mask.

    Attributes:
      self_attention: A :class:`~jaxformer.nn.attention.MultiHeadAttention`, or another module with
        the same signature.
      feed_forward: A :class:`~jaxformer.nn.feed_forward.FeedForward`, or any module of x.
      cross_attention: Attention to a memory; None for a block without one.
      make_residual: Creates the residual connection of each sub-layer.
    """

    self_attention: nn.Module
    feed_forward: nn.Module
    cross_attention: nn.Module | None = None
    make_residual: Callable[[], Residual] = Residual

    def setup(self) -> None:
        self.self_attention_residual = self.make_residual()
        if self.cross_attention is not None:
            self.cross_attention_residual = self.make_residual()
        self.feed_forward_residual = self.make_residual()

    def __call__(
        self,
        x: Float[Array, "B T D"],
        memory: Float[Array, "B S D"] | None = None,
        mask: Bool[Array, "#B #H #T _"] | None = None,
        memory_mask: Bool[Array, "#B #H #T #S"] | None = None,
        deterministic: bool = True,
        *,
        positions: Int[Array, "#B T"] | None = None,
        row_ids: Int[Array, " B"] | None = None,
        cache: LayerCache | None = None,
        slots: Slots | None = None,
    ) -> Any:
        """Runs the block over whole sequences, or over new tokens with a cache.

        Args:
          x: Activations.
          memory: Activations that cross-attention attends to; None with a cache, which has its keys
            and values.
          mask: True where a token may attend to another; everywhere when None.
          memory_mask: True where a token may attend to the memory; everywhere when None.
          deterministic: False enables dropout, and needs ``rngs={"dropout": key}``. Static: with
            ``nn.remat`` pass it by position and name it in ``static_argnums``.
          positions: Position of every token; 0, 1, ... when None.
          row_ids: Index of each row in the global batch, for dropout; 0, 1, ... when None.
          cache: From :meth:`init_cache`, or returned by the previous call.
          slots: The slots of the cache that new tokens are written to.

        Returns:
          Activations; with a cache also the updated cache.
        """
        check_activations("Block", "x", x, axes=3)
        new_cache: LayerCache = {}

        def attend(name: str, *args: Any, **kwargs: Any) -> Float[Array, "B T D"]:
            attention: Callable = getattr(self, name)
            if cache is None:
                return attention(*args, deterministic, row_ids=row_ids, **kwargs)
            attended, new_cache[name] = attention(*args, cache=cache[name], slots=slots, **kwargs)
            return attended

        def residual(name: str, x: Array, sublayer: Callable[[Array], Array]) -> Array:
            wrap: Residual = getattr(self, f"{name}_residual")
            return wrap(x, sublayer, deterministic, row_ids=row_ids)

        x = residual(
            "self_attention",
            x,
            lambda h: attend("self_attention", h, None, mask, positions=positions),
        )
        if self.cross_attention is not None:
            x = residual(
                "cross_attention",
                x,
                lambda h: attend("cross_attention", h, memory, memory_mask),
            )
        x = residual("feed_forward", x, self.feed_forward)
        return x if cache is None else (x, new_cache)

    def init_cache(
        self, slots: Slots, memory: Float[Array, "B S D"] | None, d_model: int, dtype: str
    ) -> LayerCache:
        """Returns a cache without tokens, which already holds the keys and values of the memory."""
        attention: Any = self.self_attention
        cache: LayerCache = {"self_attention": attention.init_cache(slots, d_model, dtype)}
        if self.cross_attention is not None:
            cross: Any = self.cross_attention
            cache["cross_attention"] = cross.cache_memory(memory)
        return cache
