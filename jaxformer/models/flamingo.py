"""Flamingo (Alayrac et al. 2022): a frozen language model that also reads pictures."""

import dataclasses
import functools
from typing import Literal

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from jaxformer.errors import UserError
from jaxformer.fields import setting
from jaxformer.models.architecture import StackSettings, check_divides
from jaxformer.models.clip import VisionTower
from jaxformer.models.dual_encoder import num_vision_tokens
from jaxformer.models.llama import Llama, LlamaConfig
from jaxformer.models.pictures import PixelArchitecture
from jaxformer.nn.argument_checks import check_length
from jaxformer.nn.attention import MultiHeadAttention
from jaxformer.nn.dropout import RowIds, dropout_rows
from jaxformer.nn.feed_forward import Activation, FeedForward
from jaxformer.nn.gated_block import GatedBlock
from jaxformer.nn.keys import Keys, Memory, Tokens
from jaxformer.nn.norm import LayerNorm, RMSNorm
from jaxformer.nn.precision import activation_dtype
from jaxformer.nn.resampler import Resampler, ResamplerLayer
from jaxformer.nn.stack import Stack, StackCache

# Of the resampler; transformers has no field for it.
_RESAMPLER_EPSILON = 1e-5


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlamingoConfig(PixelArchitecture, LlamaConfig):
    """The architecture of :class:`Flamingo`; by default Idefics' with 9 billion parameters.

    The other fields are of the language model, as in :class:`~jaxformer.models.llama.LlamaConfig`.

    Attributes:
      picture_token: Id of the token that stands for a picture in a text.
      additional_tokens: Number of the last token ids, whose embeddings the language model did not
        have before; exports write them apart.
      gated_every: Number of layers of the language model after each gated block.
      gates: The gates of a block are one number each, a "scalar", or a "vector" of ``d_model``.
      gated_qk_norm: Normalize the queries and keys of each head in gated blocks.
      patch_size: Side of a patch in pixels.
      vision_d_model: Width of the encoder of pictures and of the resampler; also ``vision_d_ff``,
        ``vision_num_heads``, ``vision_num_layers``, ``vision_activation`` and
        ``vision_norm_epsilon``.
      num_latents: Number of vectors that the resampler makes of each picture.
      resampler_d_ff: Inner width of the feed-forward networks of the resampler; also
        ``resampler_num_heads`` and ``resampler_num_layers``.
      resampler_d_k: Size of a head of the resampler.
      resampler_qk_norm: Normalize the queries and keys of each head in the resampler.
    """

    architecture: Literal["flamingo"] = "flamingo"
    picture_token: int = setting(4, "not negative", may_differ=True)
    additional_tokens: int = setting(0, "not negative", may_differ=True)
    gated_every: int = setting(4, "positive")
    gates: Literal["scalar", "vector"] = "scalar"
    gated_qk_norm: bool = False
    pixel_mean: str = "0.48145466 0.4578275 0.40821073"
    pixel_std: str = "0.26862954 0.26130258 0.27577711"
    patch_size: int = setting(14, "positive")
    vision_d_model: int = setting(1280, "size")
    vision_d_ff: int = setting(5120, "size")
    vision_num_heads: int = setting(16, "size")
    vision_num_layers: int = setting(32, "size")
    vision_activation: Activation = "gelu_exact"
    vision_norm_epsilon: float = setting(1e-5, "positive")
    num_latents: int = setting(64, "positive")
    resampler_d_ff: int = setting(5120, "size")
    resampler_num_heads: int = setting(16, "size")
    resampler_num_layers: int = setting(6, "size")
    resampler_d_k: int = setting(96, "size")
    resampler_qk_norm: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_divides(self, "gated_every", "num_layers")
        check_divides(self, "vision_num_heads", "vision_d_model")
        for side in ("height", "width"):
            check_divides(self, "patch_size", side)
        for name in ("picture_token", "additional_tokens"):
            value = getattr(self, name)
            size = self.vocab_size
            if value >= size:
                raise UserError(
                    f"model.{name} must be less than model.vocab_size={size}: got {value}"
                )
        if self.window is not None:
            raise UserError("model.window must be None for Flamingo: got a number")

    @property
    def num_tokens(self) -> int:
        """Number of patches of a picture, and its class token."""
        return num_vision_tokens(self.image_shape, self.patch_size)

    def vision_settings(self) -> StackSettings:
        """Returns the settings of the layers of the encoder of pictures."""
        return StackSettings(
            num_layers=self.vision_num_layers,
            d_ff=self.vision_d_ff,
            num_heads=self.vision_num_heads,
            dropout_rate=0.0,
            attention_dropout_rate=0.0,
            norm_epsilon=self.vision_norm_epsilon,
            activation=self.vision_activation,
            compute_dtype=self.compute_dtype,
        )


def pictures_seen(
    tokens: Int[Array, "B T"], picture_token: int, count: int
) -> Bool[Array, "B T N"]:
    """Returns which of ``count`` pictures each token sees: the last one up to it.

    >>> pictures_seen(jnp.array([[3, 4, 3, 4]]), picture_token=4, count=2)[0].astype(int).tolist()
    [[0, 0], [1, 0], [1, 0], [0, 1]]

    The n-th token that stands for a picture stands for the n-th one. A token before the first sees
    none.
    """
    number = (tokens == picture_token).cumsum(axis=1) - 1  # [B, T]
    return number[:, :, None] == jnp.arange(count)


class Flamingo(Llama):
    """A language model with pictures in its texts, which also decodes token by token.

    Pictures become vectors of an encoder, then ``num_latents`` vectors of a resampler each, which
    gated blocks between the layers of the language model attend to. The language model has the
    parameters of a :class:`Llama`, under the same names. While the gates are 0, as at the
    beginning, it computes what it did before.
    """

    config: FlamingoConfig

    extends = Llama

    def setup(self) -> None:
        super().setup()
        c = self.config
        self.vision = VisionTower(
            c.vision_settings(),
            c.vision_d_model,
            c.image_shape,
            c.patch_size,
            remat=self.remat,
        )
        self.resampler = Resampler(
            self._make_resampler_layer,
            c.resampler_num_layers,
            c.num_latents,
            final_norm=functools.partial(LayerNorm, _RESAMPLER_EPSILON),
            remat=self.remat,
        )

    @nn.nowrap
    def _make_resampler_layer(self) -> ResamplerLayer:
        c = self.config
        make_norm = functools.partial(LayerNorm, _RESAMPLER_EPSILON)
        attention = MultiHeadAttention(
            c.resampler_num_heads,
            d_k=c.resampler_d_k,
            d_v=c.resampler_d_k,
            make_qk_norm=make_norm if c.resampler_qk_norm else None,
            compute_dtype=c.compute_dtype,
        )
        feed_forward = FeedForward(
            c.resampler_d_ff,
            "relu",
            c.compute_dtype,
            use_bias=False,
        )
        return ResamplerLayer(attention, feed_forward, make_norm)

    @nn.nowrap
    def _make_decoder(self) -> Stack:
        c = self.config
        make_norm = functools.partial(RMSNorm, c.norm_epsilon)
        cross_attention = MultiHeadAttention(
            c.num_heads,
            d_k=c.key_size,
            d_v=c.key_size,
            dropout_rate=c.attention_dropout_rate,
            make_qk_norm=make_norm if c.gated_qk_norm else None,
            memory_width=c.vision_d_model,
            compute_dtype=c.compute_dtype,
        )
        feed_forward = FeedForward(
            c.d_ff,
            c.activation,
            c.compute_dtype,
            use_bias=False,
            gated=True,
        )
        gated = GatedBlock(cross_attention, feed_forward, make_norm, c.gates)
        return super()._make_decoder().clone(gated=gated, gated_every=c.gated_every)

    def __call__(
        self,
        images: Float[Array, "B N Y X C"],
        tokens_in: Int[Array, "B T"],
        deterministic: bool = True,
        *,
        seen: Bool[Array, "B T N"] | None = None,
        row_ids: RowIds = None,
    ) -> Float[Array, "B T V"]:
        """Returns logits of the next token at every position, float32.

        Args:
          images: Pictures of each text, in their order, with pixels that are normalized by the mean
            and the standard deviation of the config.
          tokens_in: Token ids; ``config.picture_token`` stands for the pictures, in their order.
          deterministic: False enables dropout, and needs ``rngs={"dropout": key}``. Static.
          seen: True where a token sees a picture; by :func:`pictures_seen` when None.
          row_ids: As in :class:`~jaxformer.Transformer`, which also raises the same errors.
        """
        features = self.features(images, tokens_in, deterministic, seen=seen, row_ids=row_ids)
        return self.logits(features)

    def features(
        self,
        images: Float[Array, "B N Y X C"],
        tokens_in: Int[Array, "B T"],
        deterministic: bool = True,
        *,
        seen: Bool[Array, "B T N"] | None = None,
        row_ids: RowIds = None,
    ) -> Float[Array, "B T D"]:
        """Returns the input of :meth:`logits`; see ``__call__``."""
        batch, length = tokens_in.shape
        dropout = dropout_rows(batch, deterministic, row_ids)
        if seen is None:
            seen = pictures_seen(tokens_in, self.config.picture_token, images.shape[1])

        activations = self.memory(images)  # [B, S, M]
        mask = self._mask_of(seen)[:, None]  # [B, 1, T, S]
        of_memory = Keys(Tokens.of(length), Tokens.of(activations.shape[1]), mask)

        x = self.dropout(self.embed(tokens_in), dropout)
        keys = Keys.of_sequence(length, causal=True)
        x = self.decoder(x, keys, Memory(activations, of_memory), dropout=dropout)
        return self.output_features(x)

    def memory(self, images: Float[Array, "B N Y X C"]) -> Float[Array, "B S M"]:
        """Returns the latents of all pictures of a text, one picture after another."""
        if images.ndim != 5:
            raise UserError(
                "Flamingo: expected pictures [batch, pictures, height, width, channels], got "
                f"{images.shape}"
            )
        batch, count, *shape = images.shape
        features = self.vision(images.reshape(batch * count, *shape))
        latents = self.resampler(features)  # [B * N, L, M]
        return latents.reshape(batch, -1, latents.shape[-1])

    @nn.nowrap
    def _mask_of(self, seen: Bool[Array, "B T N"]) -> Bool[Array, "B T S"]:
        """Returns where tokens see latents, given the pictures that they see."""
        return jnp.repeat(seen, self.config.num_latents, axis=2)

    def start(
        self,
        images: Float[Array, "B N Y X C"],
        num_seen: Int[Array, " B"],
        *,
        num_beams: int = 1,
        capacity: int,
    ) -> StackCache:
        """Returns an empty cache; fill it with :meth:`prefill` or :meth:`step`.

        Args:
          images: As for ``__call__``.
          num_seen: Number of pictures in the prompt. All tokens after it see the last one.
          num_beams: Number of hypotheses of each text.
          capacity: Most tokens, of the prompt and after it.
        """
        check_length("text", capacity, self.config.max_length)
        count = images.shape[1]
        last = (num_seen[:, None] - 1) == jnp.arange(count)  # [B, N]
        return self.decoder.init_cache(
            num_seen,
            self.config.d_model,
            activation_dtype(self.config.compute_dtype, self.output_table),
            num_beams=num_beams,
            capacity=capacity,
            memory=self.memory(images),
            memory_mask=self._mask_of(last[:, None])[:, 0],
        )

    def _memory_mask(
        self,
        tokens: Int[Array, "B T"],
        cache: StackCache,
    ) -> Bool[Array, "B T S"]:
        assert cache.memory_mask is not None, "start has a memory"
        count = cache.memory_mask.shape[-1] // self.config.num_latents
        return self._mask_of(pictures_seen(tokens, self.config.picture_token, count))
