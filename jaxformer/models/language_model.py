"""A decoder-only language model: the decoder of section 3 without cross-attention."""

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from jaxformer.errors import UserError
from jaxformer.models.assembly import (
    ModelConfig,
    check_model_config,
    make_embedding,
    make_logits_bias,
    make_stack,
    make_table,
    unquantized,
)
from jaxformer.nn.arguments import check_length
from jaxformer.nn.dropout import Dropout, dropout_rows
from jaxformer.nn.embedding import output_logits
from jaxformer.nn.keys import Keys
from jaxformer.nn.precision import activation_dtype
from jaxformer.nn.stack import Remat, StackCache


class LanguageModel(nn.Module):
    """Predicts every token of a text from the tokens before it.

    ``__call__`` computes the logits of whole texts. :meth:`start`, :meth:`prefill` and :meth:`step`
    generate token by token.

    Departs from the paper: there is no encoder, and no attention to one.

    >>> import jax
    >>> config = ModelConfig(vocab_size=11, d_model=8, d_ff=16, num_heads=2, num_layers=1)
    >>> model, tokens = LanguageModel(config), jnp.array([[5, 3, 4]])
    >>> params = model.init(jax.random.key(0), tokens)["params"]
    >>> model.apply({"params": params}, tokens).shape
    (1, 3, 11)

    Attributes:
      config: The architecture; ``num_layers`` is the number of layers of the only stack.
      remat: Rematerialization policy of the backward pass; see
        :class:`~jaxformer.config.TrainingConfig`.
    """

    config: ModelConfig
    remat: Remat = "none"

    def setup(self) -> None:
        c = self.config
        check_model_config("LanguageModel", c)
        if c.embeddings == "separate":
            raise UserError(
                "LanguageModel: expected model.embeddings=tied, since there is one side only: got "
                "separate"
            )
        self.embedding = make_table(self, "embedding", c.vocab_size, c.d_model)
        self.embed = make_embedding(self, self.embedding, "positions", c)
        self.logits_bias = make_logits_bias(self, c)
        self.dropout = Dropout(c.dropout_rate)
        self.decoder = make_stack(c, causal=True, remat=self.remat)

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
          positions: Position of every token in its text, less than ``config.max_length``; 0, 1, ...
            when None.
          row_ids: Index of each row in the global batch, for dropout; 0, 1, ... when None.

        Raises:
          UserError: Tokens are not [batch, length], a text is longer than ``config.max_length``, or
            an id is out of range. Within ``jax.jit`` ids cannot be checked, and a wrong id gives
            NaN.
        """
        features = self.features(
            tokens_in, deterministic, segments=segments, positions=positions, row_ids=row_ids
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
        """Returns the output of the stack, the input of :meth:`logits`; see ``__call__``."""
        dropout = dropout_rows(tokens_in.shape[0], deterministic, row_ids)
        x = self.dropout(self.embed(tokens_in, positions), dropout)
        keys = Keys.of_sequence(tokens_in.shape[1], segments, positions, causal=True)
        return self.decoder(x, keys, dropout=dropout)

    def logits(self, features: Float[Array, "*rows D"]) -> Float[Array, "*rows V"]:
        """Returns the logits, which use the transposed embedding (section 3.4)."""
        return output_logits(features, self.embedding, self.logits_bias)

    def output_projection(self) -> tuple[Float[Array, "V D"], Float[Array, " V"] | None]:
        """Returns the matrix and bias of :meth:`logits`, for losses that do not store logits.

        Raises:
          ValueError: The parameters are quantized to int8, which cannot be trained.
        """
        return unquantized(self.embedding), self.logits_bias

    def start(self, like: Int[Array, "B ..."], *, num_beams: int = 1, capacity: int) -> StackCache:
        """Returns an empty cache; fill it with :meth:`prefill` or :meth:`step`.

        Args:
          like: Integers with a batch axis, such as the prompt's tokens, whose number of rows and
            layout on a mesh the cache follows.
          num_beams: Beams per row.
          capacity: Capacity in tokens; see :meth:`~jaxformer.StackCache.grow`.
        """
        check_length("text", capacity, self.config.max_length)
        return self.decoder.init_cache(
            like.reshape(like.shape[0], -1)[:, 0],
            self.config.d_model,
            activation_dtype(self.config.compute_dtype, self.embedding),
            num_beams=num_beams,
            capacity=capacity,
        )

    def prefill(
        self, tokens: Int[Array, "B T"], cache: StackCache, length: Int[Array, ""] | int
    ) -> tuple[Float[Array, "B T D"], StackCache]:
        """Reads the first tokens of the texts in one pass, for all beams.

        Args:
          tokens: The prompts, padded on the right.
          cache: From :meth:`start`, with capacity for all tokens.
          length: Number of tokens to keep in the cache.

        Returns:
          The stack's output, whose :meth:`logits` at each token predict the next token, and the
          cache.
        """
        return self.decoder.prefill(self.embed(tokens), cache, length)

    def step(
        self, tokens: Int[Array, "B N"], cache: StackCache
    ) -> tuple[Float[Array, "B N V"], StackCache]:
        """Returns float32 logits of the next token of every beam, and the updated cache."""
        positions = jnp.broadcast_to(cache.slots.length, tokens.shape)
        embedded = self.embed(tokens, positions, cache.slots.longest)
        x, cache = self.decoder.step(embedded, cache)
        return self.logits(x), cache
