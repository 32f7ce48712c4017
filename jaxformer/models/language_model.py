"""A decoder-only language model: the decoder of section 3 without cross-attention."""

from flax import linen as nn
from jaxtyping import Array, Float, Int

from jaxformer.errors import UserError
from jaxformer.models.assembly import ModelConfig, make_stack
from jaxformer.models.stepwise import StepwiseModel
from jaxformer.nn.argument_checks import check_length
from jaxformer.nn.dropout import Dropout, dropout_rows
from jaxformer.nn.keys import Keys
from jaxformer.nn.matmul import project
from jaxformer.nn.precision import activation_dtype
from jaxformer.nn.stack import Stack, StackCache


class LanguageModel(StepwiseModel):
    """Predicts every token of a text from the tokens before it.

    ``__call__`` computes the logits of whole texts. :meth:`start`, :meth:`prefill` and :meth:`step`
    generate token by token. ``config.num_layers`` is the number of layers of the only stack.

    Departs from the paper: there is no encoder, and no attention to one.

    >>> import jax
    >>> config = ModelConfig(vocab_size=11, d_model=8, d_ff=16, num_heads=2, num_layers=1)
    >>> model = LanguageModel(config)
    >>> tokens = jax.numpy.array([[5, 3, 4]])
    >>> params = model.init(jax.random.key(0), tokens)["params"]
    >>> model.apply({"params": params}, tokens).shape
    (1, 3, 11)
    """

    config: ModelConfig

    def setup(self) -> None:
        super().setup()
        has_two_sides = "src_embedding" in self.config.embedding_names
        if has_two_sides:
            raise UserError(
                "LanguageModel: expected model.embeddings=tied, since there is one side only: got "
                "separate"
            )

        # With one side only, the table of the source is also the target's.
        self.embed = self._make_embedding(self.src_table, "positions", is_projected=True)
        self.logits_bias = self._make_logits_bias()
        self.final_projection = self._make_projection(
            "final_projection",
            self.config.d_model,
            self.config.embedding_width,
        )
        self.dropout = Dropout(self.config.embedding_settings().dropout_rate)
        self.decoder = self._make_decoder()

    @nn.nowrap
    def _make_decoder(self) -> Stack:
        return make_stack(self.config.stack_settings(), causal=True, remat=self.remat)

    def __call__(
        self,
        tokens_in: Int[Array, "B T"],
        deterministic: bool = True,
        *,
        segments: Int[Array, "B T"] | None = None,
        positions: Int[Array, "B T"] | None = None,
        row_ids: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T V"]:
        """Returns logits of the next token at every position, float32.

        Args:
          tokens_in: Token ids.
          deterministic: False enables dropout, and needs ``rngs={"dropout": key}``. Static.
          segments: n on the n-th text of a packed row, 0 on padding; one text per row when None.
          positions: As in :class:`~jaxformer.Transformer`, which also raises the same errors.
          row_ids: As in :class:`~jaxformer.Transformer`.
        """
        features = self.features(
            tokens_in,
            deterministic,
            segments=segments,
            positions=positions,
            row_ids=row_ids,
        )
        return self.logits(features)

    def features(
        self,
        tokens_in: Int[Array, "B T"],
        deterministic: bool = True,
        *,
        segments: Int[Array, "B T"] | None = None,
        positions: Int[Array, "B T"] | None = None,
        row_ids: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T D"]:
        """Returns the input of :meth:`logits`; see ``__call__``."""
        x = self.embed(tokens_in, positions)

        batch, length = tokens_in.shape
        dropout = dropout_rows(batch, deterministic, row_ids)
        keys = Keys.of_sequence(length, segments, positions, causal=True)

        x = self.dropout(x, dropout)
        x = self.decoder(x, keys, dropout=dropout)
        return self.output_features(x)

    def output_features(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows E"]:
        """Returns the input of :meth:`logits`, as wide as embeddings, given the stack's output."""
        if self.final_projection is None:
            return x
        return project(x, self.final_projection, compute_dtype=self.config.compute_dtype)

    def start(
        self,
        rows: Int[Array, "B ..."],
        *,
        num_beams: int = 1,
        capacity: int,
    ) -> StackCache:
        """Returns an empty cache; fill it with :meth:`prefill` or :meth:`step`.

        The cache has as many rows as ``rows``, such as prompts, with the same layout on a mesh. Its
        capacity is in tokens; see :meth:`~jaxformer.StackCache.grow`.
        """
        check_length("text", capacity, self.config.max_length)

        # Only the number and the sharding of the rows matter: one value of each is enough.
        values = rows.reshape(rows.shape[0], -1)[:, 0]  # [B]
        return self.decoder.init_cache(
            values,
            self.config.d_model,
            activation_dtype(self.config.compute_dtype, self.output_table),
            num_beams=num_beams,
            capacity=capacity,
        )
