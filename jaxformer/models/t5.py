"""T5 (Raffel et al. 2020), an encoder-decoder for all tasks, and umT5 (Chung et al. 2023)."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Literal

from flax import linen as nn
from jaxtyping import Array, Float

from jaxformer.errors import UserError
from jaxformer.fields import setting
from jaxformer.models.architecture import Architecture, EmbeddingSettings, check_absent_tokens
from jaxformer.models.transformer import Transformer
from jaxformer.nn.attention import MultiHeadAttention
from jaxformer.nn.block import Block, Residual
from jaxformer.nn.feed_forward import Activation, FeedForward
from jaxformer.nn.norm import RMSNorm
from jaxformer.nn.positions import BucketedBias
from jaxformer.nn.precision import ComputeDtype
from jaxformer.nn.stack import Stack


@dataclasses.dataclass(frozen=True, kw_only=True)
class T5Config(Architecture):
    """The architecture of :class:`T5`; by default the small model of version 1.0.

    Fields that are not listed are as in :class:`~jaxformer.models.gpt2.GPT2Config`.

    Attributes:
      d_k: Size of a head.
      num_decoder_layers: Number of decoder layers; ``num_layers`` when None.
      dropout_rate: Dropout rate of sub-layer outputs, embeddings and attention weights.
      gated: Multiply the activation by a linear projection, as in version 1.1.
      embeddings: "tied", or "separate" for an output matrix of its own, as in version 1.1.
      scaled_output: Multiply the decoder's output by ``d_model**-0.5``, as in version 1.0.
      bias_per_layer: Learn relative positions for each layer, as umT5 does, and not for each stack.
      num_buckets: Number of buckets of relative positions.
      max_distance: Distance from which all positions share a bucket.
      max_length: Maximum sequence length in tokens; no parameter depends on it.
    """

    architecture: Literal["t5"] = "t5"
    vocab_size: int = setting(32_128, "size", may_differ=True)
    d_model: int = setting(512, "size")
    d_ff: int = setting(2048, "size")
    num_heads: int = setting(8, "size")
    d_k: int = setting(64, "size")
    num_layers: int = setting(6, "size")
    num_decoder_layers: int | None = setting(None, "positive")
    dropout_rate: float = setting(0.1, "fraction", may_differ=True)
    activation: Activation = "relu"
    gated: bool = False
    embeddings: Literal["tied", "separate"] = "tied"
    scaled_output: bool = True
    bias_per_layer: bool = False
    num_buckets: int = setting(32, "positive")
    max_distance: int = setting(128, "positive")
    norm_epsilon: float = setting(1e-6, "positive")
    absent_tokens: str = setting("", may_differ=True)
    max_length: int = setting(2048, "size", may_differ=True)
    compute_dtype: ComputeDtype = setting("float32", may_differ=True, per_use=True)

    def __post_init__(self) -> None:
        super().__post_init__()

        # In a decoder, half of the buckets are for single distances. The others reach further.
        has_few_buckets = self.num_buckets < 4
        if has_few_buckets or self.max_distance <= self.num_buckets // 2:
            raise UserError(
                "model.num_buckets must be at least 4, and model.max_distance more than half of "
                f"it: got {self.num_buckets} and {self.max_distance}"
            )

        check_absent_tokens(self.absent_tokens)

    def embedding_settings(self) -> EmbeddingSettings:
        return EmbeddingSettings(
            dropout_rate=self.dropout_rate,
            absent_tokens=self.absent_tokens,
        )

    @property
    def key_size(self) -> int:
        return self.d_k

    @property
    def decoder_layers(self) -> int:
        return self.num_layers if self.num_decoder_layers is None else self.num_decoder_layers

    @property
    def embedding_names(self) -> tuple[str, str, str]:
        if self.embeddings == "separate":
            return "embedding", "embedding", "output_embedding"
        return super().embedding_names

    @property
    def feed_forward_matrices(self) -> int:
        return 3 if self.gated else 2


class T5(Transformer):
    """T5, which is called and decodes as :class:`~jaxformer.Transformer` does.

    In training, it has no dropout within feed-forward networks and after the last norms.
    """

    config: T5Config

    @nn.nowrap
    def _make_encoder(self) -> Stack:
        return self._make_stack(self.config.num_layers, RMSNorm)

    @nn.nowrap
    def _make_decoder(self) -> Stack:
        norm = _ScaledNorm if self.config.scaled_output else RMSNorm
        return self._make_stack(self.config.decoder_layers, norm, is_decoder=True)

    @nn.nowrap
    def _make_stack(
        self,
        layers: int,
        norm: type[RMSNorm],
        is_decoder: bool = False,
        self_attention: Callable[..., MultiHeadAttention] = MultiHeadAttention,
    ) -> Stack:
        c = self.config
        make_norm = functools.partial(RMSNorm, c.norm_epsilon)

        def make_attention(
            make: Callable[..., MultiHeadAttention],
            own_bias: Callable[[], nn.Module] | None = None,
        ) -> MultiHeadAttention:
            return make(
                num_heads=c.num_heads,
                d_k=c.d_k,
                d_v=c.d_k,
                dropout_rate=c.dropout_rate,
                scale=1.0,
                make_bias=own_bias,
                compute_dtype=c.compute_dtype,
            )

        make_bias = functools.partial(
            BucketedBias,
            c.num_heads,
            causal=is_decoder,
            num_buckets=c.num_buckets,
            max_distance=c.max_distance,
        )

        # T5 has one bias for all layers of a stack, umT5 one for each layer.
        own_bias = make_bias if c.bias_per_layer else None
        shared_bias = None if c.bias_per_layer else make_bias

        feed_forward = FeedForward(
            c.d_ff,
            c.activation,
            c.compute_dtype,
            use_bias=False,
            gated=c.gated,
        )
        block = Block(
            self_attention=make_attention(self_attention, own_bias),
            feed_forward=feed_forward,
            cross_attention=make_attention(MultiHeadAttention) if is_decoder else None,
            make_residual=functools.partial(Residual, "pre", c.dropout_rate, make_norm),
        )

        return Stack(
            layers=block,
            num_layers=layers,
            final_norm=functools.partial(norm, c.norm_epsilon),
            make_bias=shared_bias,
            remat=self.remat,
        )


class _ScaledNorm(RMSNorm):
    """The last norm of a decoder whose output is multiplied by ``d_model**-0.5``."""

    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        d_model = x.shape[-1]
        return super().__call__(x) * d_model**-0.5
