"""The Perceiver resampler of Flamingo (Alayrac et al. 2022): few vectors for each picture."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from jaxformer.errors import UserError
from jaxformer.nn.argument_checks import check_activations, check_sizes
from jaxformer.nn.keys import Keys, Memory, Tokens
from jaxformer.nn.norm import LayerNorm
from jaxformer.nn.parameters import parameter
from jaxformer.nn.rematerialization import Remat
from jaxformer.nn.stack import Stack


class ResamplerLayer(nn.Module):
    """Attention of latents to a picture and to themselves, and a feed-forward network.

    The keys are [norm(picture); norm(latents)], and the queries norm(latents). Both sub-layers have
    residual connections of the latents.

    Attributes:
      attention: A :class:`~jaxformer.nn.MultiHeadAttention`.
      feed_forward: A :class:`~jaxformer.nn.FeedForward`, or any module of x.
      make_norm: Creates each norm.
    """

    attention: nn.Module
    feed_forward: nn.Module
    make_norm: Callable[[], nn.Module] = LayerNorm

    def setup(self) -> None:
        self.picture_norm = self.make_norm()
        self.latents_norm = self.make_norm()
        self.feed_forward_norm = self.make_norm()

    def __call__(
        self,
        x: Float[Array, "B L D"],
        keys: Keys,
        memory: Memory | None,
        *,
        dropout: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B L D"]:
        """Updates latents, as a layer of a :class:`~jaxformer.Stack` whose memory is the picture.

        Args:
          x: Latents.
          keys: Keys of the latents alone, which see one another.
          memory: Activations of the picture.
          dropout: As for :class:`~jaxformer.nn.Dropout`.
        """
        if memory is None or memory.activations is None:
            raise UserError("ResamplerLayer: expected the activations of a picture as its memory")

        picture = self.picture_norm(memory.activations)
        latents = self.latents_norm(x)
        seen = jnp.concatenate([picture, latents], axis=1)  # [B, S + L, D]
        of_both = Keys(keys.queries, Tokens.of(seen.shape[1]))

        attention: Any = self.attention
        attended, _ = attention.attend(latents, of_both, seen, dropout=dropout)
        x = x + attended
        return x + self.feed_forward(self.feed_forward_norm(x))


class Resampler(nn.Module):
    """Maps the features of a picture, of any number, to a fixed number of vectors.

    >>> import jax
    >>> from jaxformer.nn import FeedForward, MultiHeadAttention
    >>> def make_layer():
    ...     return ResamplerLayer(MultiHeadAttention(2), FeedForward(32))
    >>> resampler = Resampler(make_layer, num_layers=2, num_latents=4)
    >>> features = jnp.ones((1, 9, 8))
    >>> params = resampler.init(jax.random.key(0), features)
    >>> resampler.apply(params, features).shape
    (1, 4, 8)

    Attributes:
      make_layer: Creates the layer that is repeated, a :class:`ResamplerLayer`.
      num_layers: Number of layers.
      num_latents: Number of learned vectors, L, and of vectors of the result.
      final_norm: Creates the norm after the last layer.
      remat: Rematerialization policy of the backward pass.
    """

    make_layer: Callable[[], Any]
    num_layers: int
    num_latents: int
    final_norm: Callable[[], nn.Module] = LayerNorm
    remat: Remat = "none"

    def setup(self) -> None:
        check_sizes(self, "num_layers", "num_latents")
        self.stack = Stack(
            layers=self.make_layer(),
            num_layers=self.num_layers,
            final_norm=self.final_norm,
            remat=self.remat,
        )

    def __call__(
        self,
        picture: Float[Array, "B S D"],
        *,
        dropout: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B L D"]:
        """Returns the latents after all layers, given the features of pictures."""
        check_activations("Resampler", "picture", picture, axes=3)
        batch, length, width = picture.shape
        shared = self._latents(width)
        latents = jnp.broadcast_to(shared, (batch, *shared.shape)).astype(picture.dtype)

        queries = Tokens.of(self.num_latents)
        memory = Memory(picture, Keys(queries, Tokens.of(length)))
        return self.stack(latents, Keys.of_sequence(self.num_latents), memory, dropout=dropout)

    @nn.compact
    def _latents(self, width: int) -> Float[Array, "L D"]:
        normal = nn.initializers.normal(1.0)
        return parameter(self, "latents", normal, (self.num_latents, width))
