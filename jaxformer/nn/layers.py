"""Encoder and decoder layers (section 3.1) and what they are made of."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from jaxformer.config import ModelConfig
from jaxformer.errors import UserError
from jaxformer.nn.arguments import check_model_config, check_width
from jaxformer.nn.attention import MultiHeadAttention
from jaxformer.nn.dropout import Dropout
from jaxformer.nn.masks import causal_mask
from jaxformer.nn.projection import project


class LayerNorm(nn.Module):
    """Layer normalisation (Ba et al. 2016), statistics in float32, result in the dtype of ``x``."""

    epsilon: float = 1e-6

    @nn.compact
    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        """Normalises the last axis to mean 0 and variance 1, then scales and shifts it."""
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],), jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (x.shape[-1],), jnp.float32)
        wide = x.astype(jnp.float32)
        centred = wide - wide.mean(axis=-1, keepdims=True)
        variance = jnp.square(centred).mean(axis=-1, keepdims=True)
        return (centred * jax.lax.rsqrt(variance + self.epsilon) * scale + bias).astype(x.dtype)


class FeedForward(nn.Module):
    """FFN(x) = max(0, x W1 + b1) W2 + b2 (equation 2).

    Departs from the paper: ``config.activation="swish"``, which is optional, instead of max(0, .).
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        """Applies the network to every position separately.

        Raises:
          UserError: The last axis has another size than ``config.d_model``.
        """
        c = self.config
        check_model_config("FeedForward", c)
        if x.shape[-1:] != (c.d_model,):
            raise UserError(
                f"FeedForward: expected x of shape [..., d_model={c.d_model}], got {x.shape}"
            )
        glorot = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform")
        zeros = nn.initializers.zeros
        inner = self.param("inner", glorot, (c.d_model, c.d_ff), jnp.float32)
        inner_bias = self.param("inner_bias", zeros, (c.d_ff,), jnp.float32)
        outer = self.param("outer", glorot, (c.d_ff, c.d_model), jnp.float32)
        outer_bias = self.param("outer_bias", zeros, (c.d_model,), jnp.float32)
        activation = nn.relu if c.activation == "relu" else nn.swish
        hidden = activation(project(x, inner, inner_bias, c))
        return project(hidden, outer, outer_bias, c)


class Residual(nn.Module):
    """The order of sub-layer, dropout, residual sum and layer norm, in one place.

    "post" (sections 3.1 and 5.4): LayerNorm(x + Dropout(Sublayer(x))).
    "pre": x + Dropout(Sublayer(LayerNorm(x))).
    Departs from the paper: "pre", which is optional.
    """

    config: ModelConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T D"],
        sublayer: Callable[[Float[Array, "B T D"]], Float[Array, "B T D"]],
        deterministic: bool = True,
        *,
        rows: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T D"]:
        """Wraps ``sublayer`` around ``x``."""
        norm = LayerNorm(self.config.norm_epsilon, name="norm")
        dropout = Dropout(self.config.dropout_rate)
        if self.config.norm_position == "pre":
            return x + dropout(sublayer(norm(x)), rows=rows, deterministic=deterministic)
        return norm(x + dropout(sublayer(x), rows=rows, deterministic=deterministic))


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward network, each with its residual connection."""

    config: ModelConfig

    def setup(self) -> None:
        """Creates the two sub-layers."""
        self.self_attention = MultiHeadAttention(self.config)
        self.self_attention_residual = Residual(self.config)
        self.feed_forward = FeedForward(self.config)
        self.feed_forward_residual = Residual(self.config)

    def __call__(
        self,
        x: Float[Array, "B S D"],
        mask: Bool[Array, "#B 1 #S S"] | None = None,
        deterministic: bool = True,
        *,
        rows: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B S D"]:
        """Runs one encoder layer.

        Args:
          x: Activations.
          mask: True where a token may attend; everywhere when None.
          deterministic: False switches dropout on, and needs ``rngs={"dropout": key}``. Static:
            with ``nn.remat`` pass it by position and name it in ``static_argnums``.
          rows: Number of each row in the global batch, which dropout is keyed by; 0, 1, ... when
            None.
        """
        check_width("EncoderLayer", "x", x, self.config.d_model)
        how = {"rows": rows, "deterministic": deterministic}
        x = self.self_attention_residual(x, lambda h: self.self_attention(h, h, mask), **how)
        return self.feed_forward_residual(x, self.feed_forward, **how)


class DecoderLayer(nn.Module):
    """Masked self-attention, encoder-decoder attention and feed-forward network."""

    config: ModelConfig

    def setup(self) -> None:
        """Creates the three sub-layers."""
        self.self_attention = MultiHeadAttention(self.config)
        self.self_attention_residual = Residual(self.config)
        self.cross_attention = MultiHeadAttention(self.config)
        self.cross_attention_residual = Residual(self.config)
        self.feed_forward = FeedForward(self.config)
        self.feed_forward_residual = Residual(self.config)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        encoded: Float[Array, "B S D"],
        self_mask: Bool[Array, "#B 1 T T"] | None = None,
        cross_mask: Bool[Array, "#B 1 #T S"] | None = None,
        deterministic: bool = True,
        *,
        rows: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T D"]:
        """Runs one decoder layer over whole target sequences.

        Args:
          x: Activations of the target.
          encoded: Activations of the encoded source.
          self_mask: True where a target token may attend to another; the causal mask when None.
          cross_mask: True where it may attend to the source; everywhere when None.
          deterministic: As for :class:`EncoderLayer`.
          rows: As for :class:`EncoderLayer`.
        """
        check_width("DecoderLayer", "x", x, self.config.d_model)
        check_width("DecoderLayer", "encoded", encoded, self.config.d_model)
        self_mask = causal_mask(x.shape[1]) if self_mask is None else self_mask
        how = {"rows": rows, "deterministic": deterministic}
        x = self.self_attention_residual(x, lambda h: self.self_attention(h, h, self_mask), **how)
        x = self.cross_attention_residual(
            x, lambda h: self.cross_attention(h, encoded, cross_mask), **how
        )
        return self.feed_forward_residual(x, self.feed_forward, **how)

    def step(
        self,
        x: Float[Array, "B N D"],
        keys: Float[Array, "B 1 H K M N"],
        values: Float[Array, "B 1 H M N V"],
        cross_keys: Float[Array, "B 1 H K S"],
        cross_values: Float[Array, "B 1 H S V"],
        past: Bool[Array, "B N P"],
        source_mask: Bool[Array, "B 1 S"],
        index: Int[Array, ""],
    ) -> tuple[Float[Array, "B N D"], Float[Array, "B 1 H K M N"], Float[Array, "B 1 H M N V"]]:
        """The same layer for one new token of each of N beams, with earlier ones cached.

        Args:
          x: The new tokens' representations.
          keys: Self-attention keys by position, M, and the place in the beam, N, they came from.
          values: Self-attention values, likewise.
          cross_keys: Keys of the encoded source.
          cross_values: Values of the encoded source.
          past: True at the positions and places, P = M * N, that a beam's own tokens have, the
            new one's included.
          source_mask: True where the source is not padding.
          index: Position of the new tokens.

        Returns:
          The layer's output, and ``keys`` and ``values`` with the new tokens' at ``index``.
        """
        how = {"rows": None, "deterministic": True}

        def self_attention(h: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
            nonlocal keys, values
            new_keys, new_values = self.self_attention.keys_values(h)
            new_keys = jnp.moveaxis(new_keys, 1, -1)[:, None, :, :, None]
            new_values = jnp.moveaxis(new_values, 1, 2)[:, None, :, None]
            keys = jax.lax.dynamic_update_slice_in_dim(keys, new_keys, index, axis=4)
            values = jax.lax.dynamic_update_slice_in_dim(values, new_values, index, axis=3)
            batch, _, heads, key_size = keys.shape[:4]
            return self.self_attention.attend_cached(
                h,
                keys[:, 0].reshape(batch, heads, key_size, -1),
                values[:, 0].reshape(batch, heads, -1, values.shape[-1]),
                past,
            )

        def cross_attention(h: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
            return self.cross_attention.attend_cached(
                h, cross_keys[:, 0], cross_values[:, 0], source_mask
            )

        x = self.self_attention_residual(x, self_attention, **how)
        x = self.cross_attention_residual(x, cross_attention, **how)
        return self.feed_forward_residual(x, self.feed_forward, **how), keys, values
