"""BART (Lewis et al. 2020) and its relatives: mBART, PEGASUS, Blenderbot and Blenderbot-small."""

import dataclasses
from typing import Literal

from jaxformer.errors import prefix_errors
from jaxformer.fields import setting
from jaxformer.models.architecture import (
    EmbeddingSettings,
    PaperArchitecture,
    StackSettings,
    check_absent_tokens,
)
from jaxformer.models.transformer import Transformer
from jaxformer.nn.feed_forward import Activation
from jaxformer.nn.norm import LayerNorm
from jaxformer.nn.positions import ENCODINGS
from jaxformer.nn.precision import ComputeDtype


@dataclasses.dataclass(frozen=True, kw_only=True)
class BartConfig(PaperArchitecture):
    """The architecture of :class:`Bart`; by default the large model.

    Fields that are not listed are as in :class:`~jaxformer.models.gpt2.GPT2Config`.

    Attributes:
      num_decoder_layers: Number of decoder layers; ``num_layers`` when None.
      norm_position: "post" as in BART, or "pre" with a norm after the last layer.
      positions: "learned", or "sinusoidal" as in the paper and in PEGASUS.
      embedding_norm: Norm of the sum of embeddings and positions: "both" sides, as in BART and
        mBART; "encoder" for the encoder alone, where the decoder normalizes its embeddings before
        it adds positions, as in Blenderbot-small; or "none".
      scaled_embeddings: Multiply embeddings by ``sqrt(d_model)``, as in the paper. Embeddings that
        are normalized before positions are added are not multiplied.
      max_length: Maximum sequence length in tokens, and the number of learned positions.
    """

    architecture: Literal["bart"] = "bart"
    vocab_size: int = setting(50_265, "size", may_differ=True)
    d_model: int = setting(1024, "size")
    d_ff: int = setting(4096, "size")
    num_heads: int = setting(16, "size")
    num_layers: int = setting(12, "size")
    num_decoder_layers: int | None = setting(None, "positive")
    dropout_rate: float = setting(0.1, "fraction", may_differ=True)
    attention_dropout_rate: float = setting(0.0, "fraction", may_differ=True)
    norm_position: Literal["post", "pre"] = "post"
    positions: Literal["learned", "sinusoidal"] = "learned"
    embedding_norm: Literal["both", "encoder", "none"] = "both"
    scaled_embeddings: bool = False
    activation: Activation = "gelu_exact"
    norm_epsilon: float = setting(1e-5, "positive")
    absent_tokens: str = setting("", may_differ=True)
    max_length: int = setting(1024, "size", may_differ=True)
    compute_dtype: ComputeDtype = setting("float32", may_differ=True, per_use=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_absent_tokens(self.absent_tokens)
        with prefix_errors("model"):
            # A table, here without positions, refuses sizes that it cannot encode.
            ENCODINGS[self.positions].table(0, self.d_model)

    def stack_settings(self) -> StackSettings:
        return dataclasses.replace(
            super().stack_settings(),
            norm_position=self.norm_position,
            positions=self.positions,
        )

    def embedding_settings(self) -> EmbeddingSettings:
        return EmbeddingSettings(
            positions=self.positions,
            is_scaled=self.scaled_embeddings,
            dropout_rate=self.dropout_rate,
            has_bias=True,
            absent_tokens=self.absent_tokens,
        )

    @property
    def decoder_layers(self) -> int:
        return self.num_layers if self.num_decoder_layers is None else self.num_decoder_layers


class Bart(Transformer):
    """BART, which is called and decodes as :class:`~jaxformer.Transformer` does.

    In training, it has no dropout within feed-forward networks, and skips no layers.
    """

    config: BartConfig

    def setup(self) -> None:
        super().setup()
        c = self.config
        if c.embedding_norm == "none":
            return

        self.src_norm = LayerNorm(c.norm_epsilon)
        self.tgt_norm = LayerNorm(c.norm_epsilon)
        self.embed_source = dataclasses.replace(self.embed_source, norm=self.src_norm)

        if c.embedding_norm == "both":
            self.embed = dataclasses.replace(self.embed, norm=self.tgt_norm)
        else:
            # The decoder normalizes embeddings of words, before it adds positions.
            self.embed = dataclasses.replace(
                self.embed,
                word_norm=self.tgt_norm,
                is_scaled=False,
            )
