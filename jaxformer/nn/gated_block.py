"""Gated cross-attention: what Flamingo (Alayrac et al. 2022) adds to a language model."""

from collections.abc import Callable
from typing import Any, Literal

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from jaxformer.nn.argument_checks import check_activations, check_choice
from jaxformer.nn.cache import MemoryCache
from jaxformer.nn.keys import Memory
from jaxformer.nn.norm import RMSNorm
from jaxformer.nn.parameters import parameter


class GatedBlock(nn.Module):
    """Cross-attention and a feed-forward network, each behind a gate that begins closed.

    y = x + tanh(alpha) * CrossAttention(norm(x), memory), and then y + tanh(beta) * FFN(norm(y)).
    With alpha = beta = 0, the output is the input: a language model computes what it did before.
    The attention of a token that sees nothing of the memory counts as zero.

    Attributes:
      cross_attention: A :class:`~jaxformer.nn.MultiHeadAttention` to the memory.
      feed_forward: A :class:`~jaxformer.nn.FeedForward`, or any module of x.
      make_norm: Creates the norm before each of the two.
      gates: alpha and beta are one number each, a "scalar", or a "vector" of d_model numbers.
    """

    cross_attention: nn.Module
    feed_forward: nn.Module
    make_norm: Callable[[], nn.Module] = RMSNorm
    gates: Literal["scalar", "vector"] = "scalar"

    def setup(self) -> None:
        self.cross_attention_norm = self.make_norm()
        self.feed_forward_norm = self.make_norm()

    def __call__(
        self,
        x: Float[Array, "B T D"],
        memory: Memory,
        *,
        cache: MemoryCache | None = None,
        dropout: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T D"]:
        """Runs the block over whole sequences, or over new tokens with the memory's cache.

        Args:
          x: Activations.
          memory: Memory, and what each token sees of it.
          cache: From :meth:`cache_memory`, in place of the activations of the memory.
          dropout: As for :class:`~jaxformer.nn.Dropout`.
        """
        check_activations("GatedBlock", "x", x, axes=3)
        attention: Any = self.cross_attention
        attended, _ = attention.attend(
            self.cross_attention_norm(x),
            memory.keys,
            memory.activations,
            cache=cache,
            dropout=dropout,
        )
        visible = memory.keys.allowed()
        if visible is not None:
            sees_any = visible.any(axis=(1, 3))[..., None]  # [B, T, 1]
            attended = jnp.where(sees_any, attended, 0)

        attention_gate, feed_forward_gate = self._gates(x.shape[-1])
        x = _add_gated(x, attention_gate, attended)
        added = self.feed_forward(self.feed_forward_norm(x))
        return _add_gated(x, feed_forward_gate, added)

    def cache_memory(self, memory: Float[Array, "B S M"], d_model: int) -> MemoryCache:
        """Returns the cached keys and values of a memory, for activations of this width."""
        attention: Any = self.cross_attention
        return attention.cache_memory(memory, d_model)

    @nn.compact
    def _gates(self, d_model: int) -> tuple[Array, Array]:
        """Returns alpha and beta."""
        check_choice(self, "gates", ("scalar", "vector"))
        shape = (d_model,) if self.gates == "vector" else ()
        alpha = parameter(self, "attention_gate", nn.initializers.zeros, shape)
        beta = parameter(self, "feed_forward_gate", nn.initializers.zeros, shape)
        return alpha, beta


def _add_gated(
    x: Float[Array, "B T D"],
    gate: Float[Array, "*D"],
    added: Float[Array, "B T D"],
) -> Float[Array, "B T D"]:
    """Returns x + tanh(gate) * added, in the dtype of x."""
    opening = jnp.tanh(gate).astype(x.dtype)
    return x + jnp.broadcast_to(opening, x.shape) * added.astype(x.dtype)
