"""Quantization of frames to entries of codebooks, by a Gumbel softmax (Jang et al. 2017)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from jaxformer.layout import expand_like
from jaxformer.nn.parameters import parameter


class Quantized(NamedTuple):
    """Frames as entries of codebooks.

    Attributes:
      vectors: The entries of all codebooks, side by side.
      codes: Number of the entry of each codebook.
      distribution: Probabilities of the entries without noise; without noise in the choice, 1 for
        the entry that is chosen.
    """

    vectors: Float[Array, "B T V"]
    codes: Int[Array, "B T G"]
    distribution: Float[Array, "B T G E"]


class GumbelQuantizer(nn.Module):
    """Chooses an entry of each codebook; gradients are a softmax's (Baevski et al. 2020).

    Attributes:
      groups: Number of codebooks.
      entries: Number of entries of each.
      size: Size of a result, of all codebooks together.
      temperature: Of the softmax; smaller ones are closer to the choice.
    """

    groups: int
    entries: int
    size: int
    temperature: float = 2.0

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T C"],
        noise: Float[Array, "B T G E"] | None = None,
    ) -> Quantized:
        """Quantizes frames; ``noise`` from a Gumbel distribution makes the choice random."""
        inputs = x.shape[-1]
        width = self.size // self.groups
        uniform = nn.initializers.uniform(1.0)
        shape = (self.groups, self.entries, width)
        codebook = parameter(self, "codebook", uniform, shape)

        num_scores = self.groups * self.entries
        normal = nn.initializers.normal(1.0)
        matrix = parameter(self, "scores", normal, (inputs, num_scores))
        zeros = nn.initializers.zeros
        bias = parameter(self, "scores_bias", zeros, (num_scores,))

        scores = x.astype(matrix.dtype) @ matrix
        scores = scores + expand_like(bias, scores)
        batch, frames, _ = x.shape
        scores = scores.reshape(batch, frames, self.groups, self.entries)

        noisy = scores if noise is None else scores + noise
        codes = noisy.argmax(axis=-1)
        chosen = jax.nn.one_hot(codes, self.entries, dtype=scores.dtype)

        # With noise, the choice of the forward pass has the gradient of the softmax.
        distribution = chosen
        if noise is not None:
            soft = jax.nn.softmax(noisy / self.temperature)
            chosen = chosen - jax.lax.stop_gradient(soft) + soft
            distribution = jax.nn.softmax(scores)

        vectors = jnp.einsum("BTGE,GEV->BTGV", chosen, codebook)
        vectors = vectors.reshape(batch, frames, self.size)
        return Quantized(vectors, codes, distribution)
