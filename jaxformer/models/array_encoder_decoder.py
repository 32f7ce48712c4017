"""The base of models that read arrays, such as pictures or sound, and write tokens."""

import abc
import dataclasses
import functools
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from jaxformer.fields import setting
from jaxformer.models.architecture import (
    EmbeddingSettings,
    PaperArchitecture,
    StackSettings,
    check_absent_tokens,
)
from jaxformer.models.assembly import Model, make_stack
from jaxformer.models.encoder_decoder import OutputLayer
from jaxformer.models.stepwise import StepwiseModel
from jaxformer.nn.argument_checks import check_ids, check_length
from jaxformer.nn.dropout import Dropout, RowIds, dropout_rows
from jaxformer.nn.embedding import Embedding
from jaxformer.nn.feed_forward import Activation
from jaxformer.nn.keys import Keys, Memory, Tokens
from jaxformer.nn.matmul import project
from jaxformer.nn.precision import ComputeDtype
from jaxformer.nn.stack import Stack, StackCache


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArrayDecoderArchitecture(PaperArchitecture):
    """The base of the sections of models that read arrays: the fields of their decoder.

    Fields that are not listed are as in :class:`~jaxformer.models.gpt2.GPT2Config`. The fields of
    the encoder begin with ``encoder_``.

    Attributes:
      norm_position: "pre" as in GPT-2, or "post" as in BERT and TrOCR.
      embedding_norm: Normalize the sum of embeddings and positions, as in BERT and TrOCR.
      scaled_embedding: Multiply embeddings by ``sqrt(d_model)``.
      num_token_types: Number of vectors for types of tokens, as in BERT; all have the first.
      output_layer: A linear layer with an activation and a norm before the logits, as in BERT.
      output_bias: Add a bias to the logits.
      encoder_d_model: Width of the encoder.
      projects_encoder: Project the output of the encoder to ``d_model``, if its width differs. In
        TrOCR, the keys and values of cross-attention are projections of the output itself.
    """

    vocab_size: int = setting(50_257, "size", may_differ=True)
    d_model: int = setting(768, "size")
    d_ff: int = setting(3072, "size")
    num_heads: int = setting(12, "size")
    num_layers: int = setting(12, "size")
    dropout_rate: float = setting(0.1, "fraction", may_differ=True)
    attention_dropout_rate: float = setting(0.1, "fraction", may_differ=True)
    norm_position: Literal["post", "pre"] = "pre"
    embedding_norm: bool = False
    scaled_embedding: bool = False
    num_token_types: int = setting(0, "any")
    activation: Activation = "gelu"
    output_layer: bool = False
    output_bias: bool = False
    norm_epsilon: float = setting(1e-5, "positive")
    absent_tokens: str = setting("", may_differ=True)
    max_length: int = setting(1024, "size", may_differ=True)
    compute_dtype: ComputeDtype = setting("float32", may_differ=True, per_use=True)
    encoder_d_model: int = setting(768, "size")
    projects_encoder: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_absent_tokens(self.absent_tokens)

    @property
    def has_projection(self) -> bool:
        """True if the output of the encoder is projected to the width of the decoder."""
        return self.projects_encoder and self.encoder_d_model != self.d_model

    def stack_settings(self) -> StackSettings:
        return dataclasses.replace(
            super().stack_settings(),
            norm_position=self.norm_position,
            memory_width=None if self.has_projection else self.encoder_d_model,
        )

    def embedding_settings(self) -> EmbeddingSettings:
        return EmbeddingSettings(
            positions="learned",
            is_scaled=self.scaled_embedding,
            has_norm=self.embedding_norm,
            dropout_rate=self.dropout_rate,
            has_bias=self.output_bias,
            absent_tokens=self.absent_tokens,
        )


class Encoded(NamedTuple):
    """Output of an encoder, which the decoder attends to.

    Attributes:
      features: Output of the encoder.
      visible: False for padding; None if there is none.
    """

    features: Float[Array, "B S D"]
    visible: Bool[Array, "B S"] | None = None


class ArrayEncoderDecoder(StepwiseModel):
    """An encoder of arrays, and a decoder of tokens that attends to its output.

    A subclass makes the encoder, and encodes.
    """

    config: ArrayDecoderArchitecture

    def setup(self) -> None:
        super().setup()
        c = self.config
        self.encoder = self._make_encoder()
        self.encoder_projection = None
        if c.has_projection:
            self.encoder_projection = self._make_linear(
                "encoder_projection",
                c.d_model,
                axes=("d_model", None),
                inputs=c.encoder_d_model,
            )

        self.embed = self._make_embedding(self.tgt_table, "positions")
        self.dropout = Dropout(c.dropout_rate)
        self.decoder = self._make_decoder()
        self.logits_bias = self._make_logits_bias()

    @nn.nowrap
    @abc.abstractmethod
    def _make_encoder(self) -> Model:
        """Returns the encoder."""

    @abc.abstractmethod
    def encode(
        self,
        *arrays: Array,
        deterministic: bool = True,
        row_ids: RowIds = None,
    ) -> Encoded:
        """Returns what the decoder attends to."""

    @nn.nowrap
    def _make_embedding(self, table: Any, positions: str, **options: Any) -> Embedding:
        embedding = super()._make_embedding(table, positions, **options)
        count = self.config.num_token_types
        if not count:
            return embedding

        types = self._make_table("types", count, axes=(), role="vector")
        encodings = embedding.encodings
        assert encodings is not None
        # All tokens have the first type.
        return dataclasses.replace(embedding, encodings=lambda length: encodings(length) + types[0])

    @nn.nowrap
    def _make_decoder(self) -> Stack:
        c = self.config
        stack = make_stack(
            c.stack_settings(),
            causal=True,
            cross_attention=True,
            remat=self.remat,
        )
        if not c.output_layer:
            return stack
        layer = functools.partial(OutputLayer, c.activation, c.norm_epsilon, c.compute_dtype)
        return stack.clone(final_norm=layer)

    def __call__(
        self,
        arrays: Array,
        tgt_in: Int[Array, "B T"],
        deterministic: bool = True,
        *,
        row_ids: RowIds = None,
    ) -> Float[Array, "B T V"]:
        """Returns logits of the next token at every position, float32.

        Args:
          arrays: What the encoder reads.
          tgt_in: Token ids shifted right: beginning of sentence first.
          deterministic: False enables dropout, and needs ``rngs={"dropout": key}``. Static.
          row_ids: Index of each row in the global batch, for dropout; 0, 1, ... when None.
        """
        return self._logits((arrays,), tgt_in, deterministic=deterministic, row_ids=row_ids)

    def _logits(
        self,
        arrays: tuple[Array, ...],
        tgt_in: Int[Array, "B T"],
        **dropout: Any,
    ) -> Float[Array, "B T V"]:
        check_ids("tgt_in", tgt_in, self.config.vocab_size)
        return self.logits(self.target_features(*arrays, tgt_in=tgt_in, **dropout))

    def target_features(
        self,
        *arrays: Array,
        tgt_in: Int[Array, "B T"],
        deterministic: bool = True,
        row_ids: RowIds = None,
    ) -> Float[Array, "B T D"]:
        """Returns the decoder's output for whole texts, the input of :meth:`logits`."""
        dropout: dict[str, Any] = {"deterministic": deterministic, "row_ids": row_ids}
        encoded = self.encode(*arrays, **dropout)
        return self.decode(tgt_in, encoded, **dropout)

    def decode(
        self,
        tgt_in: Int[Array, "B T"],
        encoded: Encoded,
        *,
        deterministic: bool = True,
        row_ids: RowIds = None,
    ) -> Float[Array, "B T D"]:
        """Works as :meth:`target_features` does, given the output of the encoder."""
        batch, length = tgt_in.shape
        keys = Keys.of_sequence(length, causal=True)

        features, visible = encoded
        mask = None
        if visible is not None:
            mask = visible[:, None, None]  # [B, 1, 1, S]
        seen = Tokens.of(features.shape[1])
        memory = Memory(features, Keys(Tokens.of(length), seen, mask))

        dropout = dropout_rows(batch, deterministic, row_ids)
        x = self.dropout(self.embed(tgt_in), dropout)
        return self.decoder(x, keys, memory, dropout=dropout)

    def start(self, *arrays: Array, num_beams: int = 1, capacity: int) -> StackCache:
        """Encodes arrays, and returns an empty cache with a capacity in tokens."""
        check_length("target", capacity, self.config.max_length)
        features, visible = self.encode(*arrays)
        return self.decoder.init_cache(
            jnp.zeros_like(features[:, 0, 0], jnp.int32),
            self.config.d_model,
            features.dtype.name,
            num_beams=num_beams,
            capacity=capacity,
            memory=features,
            memory_mask=visible,
        )

    def _project(self, features: Float[Array, "B S E"]) -> Float[Array, "B S D"]:
        """Returns the encoder's output with the width of the decoder."""
        if self.encoder_projection is None:
            return features
        return project(features, *self.encoder_projection, self.config.compute_dtype)
