"""An encoder with two heads: one for classes of texts, one for masked tokens."""

import dataclasses

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from jaxformer.errors import UserError
from jaxformer.fields import setting
from jaxformer.layout import expand_like
from jaxformer.models.assembly import ModelConfig, TokenModel, make_stack
from jaxformer.nn.dropout import Dropout, RowIds, dropout_rows
from jaxformer.nn.keys import Keys


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig(ModelConfig):
    """The architecture of an :class:`Encoder`.

    Attributes:
      num_classes: Number of classes.
    """

    num_classes: int = setting(2, "positive", may_differ=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.embeddings == "separate":
            raise UserError("model.embeddings must be tied in an encoder: got separate")


class Encoder(TokenModel):
    """The encoder of section 3, which predicts classes of texts or masked tokens.

    ``__call__`` computes logits of classes from the mean of the features. :meth:`features`,
    :meth:`transform` and :meth:`output_projection` give logits of tokens, to train as BERT (Devlin
    et al. 2019).

    Departs from the paper: there is no decoder.

    >>> import jax
    >>> config = EncoderConfig(vocab_size=11, d_model=8, d_ff=16, num_heads=2, num_layers=1)
    >>> model, tokens = Encoder(config), jnp.array([[5, 3, 4, 0]])
    >>> params = model.init(jax.random.key(0), tokens)["params"]
    >>> model.apply({"params": params}, tokens).shape
    (1, 2)
    """

    config: EncoderConfig

    def setup(self) -> None:
        super().setup()
        c = self.config
        self.embed = self._make_embedding(self.output_table, "positions")
        self.logits_bias = self._make_logits_bias()
        self.dropout = Dropout(c.dropout_rate)
        self.pooled_dropout = Dropout(c.dropout_rate)
        self.encoder = make_stack(c.stack_settings(), remat=self.remat)

        self.classes = self._make_linear("classes", c.num_classes)

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        deterministic: bool = True,
        *,
        row_ids: RowIds = None,
    ) -> Float[Array, "B ..."]:
        """Returns logits of the classes, float32 or float64.

        Args:
          tokens: Token ids; 0 is padding.
          deterministic: False enables dropout, and needs ``rngs={"dropout": key}``. Static.
          row_ids: As in :class:`~jaxformer.Transformer`, which also raises the same errors.
        """
        features = self.features(tokens, deterministic, row_ids=row_ids)
        return self._class_logits(
            features,
            tokens,
            deterministic=deterministic,
            row_ids=row_ids,
        )

    def features(
        self,
        tokens: Int[Array, "B T"],
        deterministic: bool = True,
        *,
        row_ids: RowIds = None,
    ) -> Float[Array, "B T D"]:
        """Returns the output of the encoder; see ``__call__``."""
        return self._encode(
            self.embed(tokens),
            tokens,
            deterministic=deterministic,
            row_ids=row_ids,
        )

    def _class_logits(
        self,
        features: Float[Array, "B T D"],
        tokens: Int[Array, "B T"],
        deterministic: bool,
        row_ids: RowIds,
    ) -> Float[Array, "B ..."]:
        """Returns logits of the classes, or the features of a model without classes."""
        if self.is_initializing():
            self.transform(features)  # creates its parameters
        if not self.config.num_classes:
            return features

        batch_size = tokens.shape[0]
        dropout = dropout_rows(batch_size, deterministic, row_ids)
        pooled = self.pool(features, tokens)  # [B, D]
        pooled = self.pooled_dropout(pooled, dropout)
        return linear(pooled, *self.classes)

    def _encode(
        self,
        x: Float[Array, "B T E"],
        tokens: Int[Array, "B T"],
        deterministic: bool,
        row_ids: RowIds,
    ) -> Float[Array, "B T D"]:
        """Returns the output of the encoder for embedded tokens."""
        batch_size, length = tokens.shape
        dropout = dropout_rows(batch_size, deterministic, row_ids)
        segments = (tokens != 0).astype(jnp.int32)
        keys = Keys.of_sequence(length, segments)

        x = self.dropout(x, dropout)
        return self.encoder(self._encoder_inputs(x), keys, dropout=dropout)

    def _encoder_inputs(self, x: Float[Array, "B T E"]) -> Float[Array, "B T D"]:
        """Returns the inputs of the first layer, given embeddings."""
        return x

    def pool(self, features: Float[Array, "B T D"], tokens: Int[Array, "B T"]) -> Array:
        """Returns the features of whole texts, [B, D]: the mean over their tokens."""
        matrix, _ = self.classes
        is_real = (tokens != 0)[..., None].astype(matrix.dtype)  # [B, T, 1]
        sums = (features * is_real).sum(axis=1)
        num_tokens = is_real.sum(axis=1)
        return sums / jnp.maximum(num_tokens, 1)

    def transform(self, features: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Returns the input of :meth:`output_projection`, here the features themselves."""
        return features


def linear(x: Float[Array, "*B D"], matrix: Array, bias: Array) -> Float[Array, "*B C"]:
    """Returns float32 or float64 logits."""
    logits = x.astype(matrix.dtype) @ matrix
    return logits + expand_like(bias, logits)


def class_probabilities(logits: Float[Array, "B C"]) -> Float[Array, "B C"]:
    """Returns the probability of each class.

    A single logit is a score, such as the relevance of a text, whose softmax would always be 1. As
    in transformers, its probability is its sigmoid.

    >>> [class_probabilities(jnp.zeros((1, n))).tolist() for n in (1, 2)]
    [[[0.5]], [[0.5, 0.5]]]
    """
    is_score = logits.shape[-1] == 1
    return nn.sigmoid(logits) if is_score else nn.softmax(logits)
