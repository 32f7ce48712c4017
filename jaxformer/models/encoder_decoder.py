"""A BERT as the encoder and a causal BERT as the decoder (Rothe et al. 2020), "BERT2BERT"."""

import dataclasses
import functools
from typing import Any, Literal

from flax import linen as nn
from jaxtyping import Array, Float

from jaxformer.fields import setting
from jaxformer.models.architecture import (
    EmbeddingSettings,
    PaperArchitecture,
    StackSettings,
    check_absent_tokens,
)
from jaxformer.models.bart import Bart
from jaxformer.nn.embedding import Embedding
from jaxformer.nn.feed_forward import Activation, activate
from jaxformer.nn.matmul import project
from jaxformer.nn.norm import LayerNorm
from jaxformer.nn.parameters import parameter
from jaxformer.nn.precision import ComputeDtype
from jaxformer.nn.stack import Stack


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderDecoderConfig(PaperArchitecture):
    """The architecture of :class:`EncoderDecoder`; by default of two BERT-base.

    Fields that are not listed are as in :class:`~jaxformer.models.gpt2.GPT2Config`.

    Attributes:
      num_decoder_layers: Number of decoder layers; ``num_layers`` when None.
      num_token_types: Number of vectors for types of tokens. Each side has type 0 only.
    """

    architecture: Literal["encoder_decoder"] = "encoder_decoder"
    vocab_size: int = setting(30_522, "size", may_differ=True)
    d_model: int = setting(768, "size")
    d_ff: int = setting(3072, "size")
    num_heads: int = setting(12, "size")
    num_layers: int = setting(12, "size")
    num_decoder_layers: int | None = setting(None, "positive")
    dropout_rate: float = setting(0.1, "fraction", may_differ=True)
    attention_dropout_rate: float = setting(0.1, "fraction", may_differ=True)
    activation: Activation = "gelu_exact"
    norm_epsilon: float = setting(1e-12, "positive")
    num_token_types: int = setting(2, "positive")
    absent_tokens: str = setting("", may_differ=True)
    max_length: int = setting(512, "size", may_differ=True)
    compute_dtype: ComputeDtype = setting("float32", may_differ=True, per_use=True)

    embedding_norm = "both"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_absent_tokens(self.absent_tokens)

    def stack_settings(self) -> StackSettings:
        return dataclasses.replace(super().stack_settings(), norm_position="post")

    def embedding_settings(self) -> EmbeddingSettings:
        return EmbeddingSettings(
            positions="learned",
            dropout_rate=self.dropout_rate,
            has_bias=True,
            absent_tokens=self.absent_tokens,
        )

    @property
    def decoder_layers(self) -> int:
        return self.num_layers if self.num_decoder_layers is None else self.num_decoder_layers

    @property
    def embedding_names(self) -> tuple[str, str, str]:
        return "src_embedding", "tgt_embedding", "tgt_embedding"


class EncoderDecoder(Bart):
    """BERT2BERT, which is called and decodes as :class:`~jaxformer.Transformer` does.

    Each side has embeddings of its own. The decoder's output passes the layer that BERT has before
    its logits of masked tokens.
    """

    config: EncoderDecoderConfig

    @nn.nowrap
    def _make_embedding(self, table: Any, positions: str) -> Embedding:
        c = self.config
        side = positions.removesuffix("_positions")
        types = self._make_table(f"{side}_types", c.num_token_types, axes=(), role="vector")

        embedding = super()._make_embedding(table, positions)
        encodings = embedding.encodings
        assert encodings is not None
        # All tokens have the first type.
        return dataclasses.replace(embedding, encodings=lambda length: encodings(length) + types[0])

    @nn.nowrap
    def _make_decoder(self) -> Stack:
        c = self.config
        head = functools.partial(OutputLayer, c.activation, c.norm_epsilon, c.compute_dtype)
        return super()._make_decoder().clone(final_norm=head)


class OutputLayer(nn.Module):
    """The layer before the logits: a linear one, an activation, and a norm."""

    activation: Activation
    norm_epsilon: float
    compute_dtype: ComputeDtype

    @nn.compact
    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        d_model = x.shape[-1]
        matrix = parameter(
            self,
            "dense",
            nn.initializers.xavier_uniform(),
            (d_model, d_model),
            axes=("d_model", None),
            role="matrix",
        )
        bias = parameter(self, "dense_bias", nn.initializers.zeros, (d_model,))

        x = project(x, matrix, bias, self.compute_dtype)
        norm = LayerNorm(self.norm_epsilon, name="norm")
        return norm(activate(self.activation, x))
