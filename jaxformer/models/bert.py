"""BERT (Devlin et al. 2019), the encoder of the paper with heads for classes and masked tokens.

With other values of a few fields, it is an encoder that followed, such as RoBERTa or ELECTRA.
"""

import dataclasses
from typing import Any, Literal, TypeAlias

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxformer.errors import UserError
from jaxformer.fields import setting
from jaxformer.models.architecture import (
    EmbeddingSettings,
    PaperArchitecture,
    StackSettings,
    check_divides,
    check_even_heads,
)
from jaxformer.models.assembly import make_stack
from jaxformer.models.encoder import Encoder, linear
from jaxformer.nn.dropout import Dropout, RowIds, dropout_rows
from jaxformer.nn.embedding import embed, output_logits
from jaxformer.nn.feed_forward import Activation, activate
from jaxformer.nn.matmul import project
from jaxformer.nn.norm import LayerNorm
from jaxformer.nn.precision import ComputeDtype

TokenTypes: TypeAlias = Int[Array, "B T"] | None
Heads = Literal[
    "",
    "pooler",
    "masked",
    "pooler masked",
    "pooler next",
    "pooler masked next",
    "spans",
    "pooler spans",
    "pooler score",
    "pooler choice",
    "replaced",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertConfig(PaperArchitecture):
    """The architecture of :class:`Bert`; by default BERT-base, with two classes.

    Fields that are not listed are as in :class:`~jaxformer.models.gpt2.GPT2Config`.

    Attributes:
      architecture: Name of the published model, which selects the format of an export.
      embedding_size: Width of the embeddings, which a matrix then projects to ``d_model``; None for
        embeddings of this width, without a matrix.
      positions: "learned", or "rotary" as in RoFormer.
      norm_position: As in :class:`~jaxformer.ModelConfig`.
      layer_groups: Number of groups of consecutive layers that share their parameters, as in
        ALBERT; None if every layer has its own.
      num_token_types: Number of vectors that distinguish the texts of a pair, or 0.
      num_classes: Number of classes; 0 for a model without a classifier.
      num_tags: Number of classes of tokens, such as the tags of names; 0 for a model without.
      pooled_activation: Activation of the pooler.
      pooled_dropout_rate: Dropout rate of the pooled features; ``dropout_rate`` when None.
      heads: Other heads, separated by spaces. Of pretraining: "pooler", which classes, "next",
        "score" and "choice" need; "masked", which ``data.corpus=masked`` needs; and "next". "spans"
        is for answers in a text, "score" for a number, "choice" for one of several texts, and
        "replaced" for the tokens that a generator has replaced (ELECTRA).
    """

    architecture: Literal[
        "bert",
        "roberta",
        "xlm-roberta",
        "roberta-prelayernorm",
        "distilbert",
        "electra",
        "albert",
        "roformer",
    ] = "bert"
    vocab_size: int = setting(30_522, "size", may_differ=True)
    d_model: int = setting(768, "size")
    d_ff: int = setting(3072, "size")
    num_heads: int = setting(12, "size")
    num_layers: int = setting(12, "size")
    embedding_size: int | None = setting(None, "size")
    positions: Literal["learned", "rotary"] = "learned"
    norm_position: Literal["post", "pre"] = "post"
    layer_groups: int | None = setting(None, "positive")
    dropout_rate: float = setting(0.1, "fraction", may_differ=True)
    attention_dropout_rate: float = setting(0.1, "fraction", may_differ=True)
    activation: Activation = "gelu_exact"
    norm_epsilon: float = setting(1e-12, "positive")
    max_length: int = setting(512, "size", may_differ=True)
    num_token_types: int = setting(2, "not negative")
    num_classes: int = setting(2, "own", may_differ=True)
    num_tags: int = setting(0, "not negative", may_differ=True)
    pooled_activation: Activation = setting("tanh", may_differ=True)
    pooled_dropout_rate: float | None = setting(None, "fraction", may_differ=True)
    heads: Heads = setting("pooler", may_differ=True)
    compute_dtype: ComputeDtype = setting("float32", may_differ=True, per_use=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.positions == "rotary":
            check_even_heads(self)
        if self.layer_groups is not None:
            check_divides(self, "layer_groups", "num_layers")

        # The classifier reads the output of the pooler.
        has_pooler = "pooler" in self.heads
        if self.num_classes < 0 or (self.num_classes and not has_pooler):
            raise UserError(
                "model.num_classes must be 0, or above 0 with pooler among model.heads: got "
                f"{self.num_classes} with {self.heads!r}"
            )

    def stack_settings(self) -> StackSettings:
        return dataclasses.replace(
            super().stack_settings(),
            norm_position=self.norm_position,
            positions=self.positions,
            layer_groups=self.layer_groups,
        )

    def embedding_settings(self) -> EmbeddingSettings:
        return EmbeddingSettings(
            positions="learned" if self.positions == "learned" else None,
            dropout_rate=self.dropout_rate,
            has_bias=True,
        )

    @property
    def embedding_width(self) -> int:
        return self.d_model if self.embedding_size is None else self.embedding_size


class Bert(Encoder):
    """BERT, with the methods of :class:`~jaxformer.Encoder`.

    A text is [CLS] text [SEP] in the ids of its tokenizer, and a pair is [CLS] text [SEP] text
    [SEP]; 0 is padding. Without classes, ``__call__`` returns the features.

    The type of a token tells the texts of a pair apart. Ids do not determine types, since a text
    may have a [SEP], too. Methods take them as ``token_types``, which are 0 when left out, for a
    single text; ``encode_pair`` of the tokenizer returns the types of a pair.
    """

    config: BertConfig

    def setup(self) -> None:
        self._check_config()
        c = self.config
        self.output_table = self._make_table("embedding", c.vocab_size)
        self.words = self._make_embedding(self.output_table, "positions")
        if c.num_token_types:
            self.token_types = self._make_table(
                "token_types",
                c.num_token_types,
                axes=(),
                role="vector",
            )
        self.norm = LayerNorm(c.norm_epsilon)
        self.dropout = Dropout(c.dropout_rate)
        if c.embedding_size is not None:
            axes = ("embedding", "d_model")
            self.projection = self._make_linear(
                "projection", c.d_model, axes, inputs=c.embedding_size
            )

        self.encoder = make_stack(c.stack_settings(), remat=self.remat)

        # The heads, each with the parameters that it needs.
        pooled_rate = c.dropout_rate if c.pooled_dropout_rate is None else c.pooled_dropout_rate
        self.pooled_dropout = Dropout(pooled_rate)
        if "pooler" in c.heads:
            self.pooler = self._make_linear("pooler", c.d_model, ("d_model", None))
        if "next" in c.heads:
            self.next = self._make_linear("next", 2)
        if c.num_classes:
            self.classes = self._make_linear("classes", c.num_classes)
        if c.num_tags:
            self.tags = self._make_linear("tags", c.num_tags)
        if "spans" in c.heads:
            self.spans = self._make_linear("spans", 2)
        if "score" in c.heads:
            self.score = self._make_linear("score", 1)
        if "choice" in c.heads:
            self.choice = self._make_linear("choice", 1)
        if "masked" in c.heads:
            self.masked = self._make_linear("masked", c.embedding_width, ("d_model", None))
            self.masked_norm = LayerNorm(c.norm_epsilon)
            self.logits_bias = self._make_logits_bias()
        if "replaced" in c.heads:
            self.replaced = self._make_linear("replaced", c.d_model, ("d_model", None))
            self.replaced_output = self._make_linear("replaced_output", 1)

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        deterministic: bool = True,
        *,
        row_ids: RowIds = None,
        token_types: TokenTypes = None,
    ) -> Float[Array, "B ..."]:
        """Returns logits of the classes, float32 or float64.

        Args:
          tokens: Token ids; 0 is padding.
          deterministic: False enables dropout, and needs ``rngs={"dropout": key}``. Static.
          row_ids: As in :class:`~jaxformer.Transformer`, which also raises the same errors.
          token_types: The type of each token, below ``num_token_types``; 0 when None. A model
            without types ignores them.
        """
        options: Any = {"row_ids": row_ids, "token_types": token_types}
        features = self.features(tokens, deterministic, **options)
        return self._class_logits(features, tokens, deterministic, row_ids)

    def features(
        self,
        tokens: Int[Array, "B T"],
        deterministic: bool = True,
        *,
        row_ids: RowIds = None,
        token_types: TokenTypes = None,
    ) -> Float[Array, "B T D"]:
        """Returns the output of the encoder; see ``__call__``."""
        return self._encode(self.embed(tokens, token_types), tokens, deterministic, row_ids)

    def embed(
        self, tokens: Int[Array, "B T"], token_types: TokenTypes = None
    ) -> Float[Array, "B T E"]:
        """Returns the sum of three embeddings, normalized."""
        words = self.words(tokens)  # the sum of words and positions
        if not self.config.num_token_types:
            return self.norm(words)

        types = jnp.zeros_like(tokens) if token_types is None else token_types
        added = embed(self.token_types, types)
        return self.norm(words + added.astype(words.dtype))

    def _encoder_inputs(self, x: Float[Array, "B T E"]) -> Float[Array, "B T D"]:
        c = self.config
        if c.embedding_size is None:
            return x
        return project(x, *self.projection, c.compute_dtype)

    def pool(
        self,
        features: Float[Array, "B T D"],
        tokens: Int[Array, "B T"],
    ) -> Array:
        """Returns the features of whole texts, [B, D], computed from the feature of [CLS]."""
        first = features[:, 0]  # [B, D]
        pooled = project(first, *self.pooler, self.config.compute_dtype)
        return activate(self.config.pooled_activation, pooled)

    def transform(self, features: Float[Array, "B T D"]) -> Float[Array, "B T E"]:
        """Returns the input of :meth:`output_projection`."""
        c = self.config
        if "masked" not in c.heads:
            # ``init`` calls this method of every model, to create the parameters of the head.
            if self.is_initializing():
                return features
            raise UserError(f"Bert: expected masked among model.heads, got {c.heads!r}")

        dense = project(features, *self.masked, c.compute_dtype)
        return self.masked_norm(activate(c.activation, dense))

    def token_logits(
        self, tokens: Int[Array, "B T"], token_types: TokenTypes = None
    ) -> Float[Array, "B T V"]:
        """Returns logits of the tokens that masks stand for."""
        x = self.transform(self.features(tokens, token_types=token_types))
        return output_logits(x, self.output_table, self.logits_bias)

    def next_logits(
        self, tokens: Int[Array, "B T"], token_types: Int[Array, "B T"]
    ) -> Float[Array, "B 2"]:
        """Returns logits of "the second text of the pair follows the first" and "does not"."""
        features = self.features(tokens, token_types=token_types)
        pooled = self.pool(features, tokens)
        return linear(pooled, *self.next)

    def span_logits(
        self,
        tokens: Int[Array, "B T"],
        deterministic: bool = True,
        *,
        row_ids: RowIds = None,
        token_types: TokenTypes = None,
    ) -> Float[Array, "B T 2"]:
        """Returns logits of each token as the first and as the last one of an answer."""
        self._check_head("spans")
        features = self.features(tokens, deterministic, row_ids=row_ids, token_types=token_types)
        return linear(features, *self.spans)

    def tag_logits(
        self,
        tokens: Int[Array, "B T"],
        deterministic: bool = True,
        *,
        row_ids: RowIds = None,
        token_types: TokenTypes = None,
    ) -> Float[Array, "B T N"]:
        """Returns logits of the tags of each token."""
        if not self.config.num_tags:
            raise UserError("Bert: expected model.num_tags above 0, got 0")

        features = self.features(tokens, deterministic, row_ids=row_ids, token_types=token_types)
        dropout = dropout_rows(tokens.shape[0], deterministic, row_ids)
        return linear(self.pooled_dropout(features, dropout), *self.tags)

    def scores(
        self,
        tokens: Int[Array, "B T"],
        deterministic: bool = True,
        *,
        row_ids: RowIds = None,
        token_types: TokenTypes = None,
    ) -> Float[Array, " B"]:
        """Returns a number for each text, such as the similarity of a pair."""
        self._check_head("score")
        pooled = self._pool_text(tokens, deterministic, row_ids, token_types)
        return linear(pooled, *self.score)[:, 0]

    def choice_logits(
        self,
        tokens: Int[Array, "B C T"],
        deterministic: bool = True,
        *,
        row_ids: RowIds = None,
        token_types: Int[Array, "B C T"] | None = None,
    ) -> Float[Array, "B C"]:
        """Returns logits of the choices, each a text or a pair of texts."""
        self._check_head("choice")
        batch_size, num_choices, length = tokens.shape

        # Each choice is a row of its own, with its own dropout.
        rows = tokens.reshape(-1, length)
        if row_ids is not None:
            number = jnp.arange(num_choices)
            row_ids = (num_choices * row_ids[:, None] + number).reshape(-1)
        if token_types is not None:
            token_types = token_types.reshape(-1, length)

        pooled = self._pool_text(rows, deterministic, row_ids, token_types)
        return linear(pooled, *self.choice).reshape(batch_size, num_choices)

    def replaced_logits(
        self, tokens: Int[Array, "B T"], token_types: TokenTypes = None
    ) -> Float[Array, "B T"]:
        """Returns logits of "a generator has replaced this token" (ELECTRA, Clark et al. 2020)."""
        self._check_head("replaced")
        c = self.config
        features = self.features(tokens, token_types=token_types)
        dense = project(features, *self.replaced, c.compute_dtype)
        return linear(activate(c.activation, dense), *self.replaced_output)[..., 0]

    def _pool_text(
        self,
        tokens: Int[Array, "B T"],
        deterministic: bool,
        row_ids: RowIds,
        token_types: TokenTypes,
    ) -> Float[Array, "B D"]:
        """Returns the input of a head for whole texts."""
        features = self.features(tokens, deterministic, row_ids=row_ids, token_types=token_types)
        dropout = dropout_rows(tokens.shape[0], deterministic, row_ids)
        return self.pooled_dropout(self.pool(features, tokens), dropout)

    def _check_head(self, name: str) -> None:
        heads = self.config.heads
        if name not in heads.split():
            raise UserError(f"Bert: expected {name} among model.heads, got {heads!r}")
