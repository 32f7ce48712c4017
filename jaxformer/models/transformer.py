"""The Transformer: encoder, decoder, shared embedding, and decoding with a cache (section 3)."""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from jaxformer.errors import UserError
from jaxformer.models.assembly import ModelConfig, make_stack
from jaxformer.models.stepwise import StepwiseModel
from jaxformer.nn.argument_checks import check_ids, check_length
from jaxformer.nn.dropout import Dropout, dropout_rows
from jaxformer.nn.keys import Keys, Memory
from jaxformer.nn.stack import StackCache


class Transformer(StepwiseModel):
    """The Transformer of "Attention Is All You Need".

    ``__call__`` composes :meth:`encode`, :meth:`decode` and :meth:`logits`. :meth:`start` and
    :meth:`step` decode token by token; :meth:`prefill` reads forced tokens in one pass.

    Token id 0 is padding unless segments are given. Several pairs may be packed into a row:
    ``segments`` number them from 1 (0 is padding) and ``positions`` restart in each.

    Departs from the paper: ``config.embeddings="separate"``, which is optional, instead of tied.

    >>> import jax
    >>> config = ModelConfig(vocab_size=11, d_model=8, d_ff=16, num_heads=2, num_layers=1)
    >>> model = Transformer(config)
    >>> src, tgt_in = jnp.array([[3, 4, 1]]), jnp.array([[2, 5]])
    >>> params = model.init(jax.random.key(0), src, tgt_in)["params"]
    >>> model.apply({"params": params}, src, tgt_in).shape
    (1, 2, 11)

    Attributes:
      config: The architecture.
      remat: Rematerialization policy of the backward pass; see :class:`~jaxformer.TrainingConfig`.
    """

    config: ModelConfig

    def setup(self) -> None:
        super().setup()
        self.embed_source = self._make_source_embedding()
        self.embed = self._make_embedding(self.tgt_table, "tgt_positions")
        self.logits_bias = self._make_logits_bias()

        dropout_rate = self.config.embedding_settings().dropout_rate
        self.src_dropout = Dropout(dropout_rate)
        self.tgt_dropout = Dropout(dropout_rate)

        self.encoder = self._make_encoder()
        self.decoder = self._make_decoder()

    @nn.nowrap
    def _make_source_embedding(self) -> Any:
        """Creates the embedding, or another module, that makes the encoder's input."""
        return self._make_embedding(self.src_table, "src_positions")

    @nn.nowrap
    def _make_encoder(self) -> Any:
        return make_stack(self.config.encoder_settings(), remat=self.remat)

    @nn.nowrap
    def _make_decoder(self) -> Any:
        return make_stack(
            self.config.decoder_settings(),
            causal=True,
            cross_attention=True,
            remat=self.remat,
        )

    def __call__(
        self,
        src: Int[Array, "B S"],
        tgt_in: Int[Array, "B T"],
        deterministic: bool = True,
        *,
        src_segments: Int[Array, "B S"] | None = None,
        src_positions: Int[Array, "B S"] | None = None,
        tgt_segments: Int[Array, "B T"] | None = None,
        tgt_positions: Int[Array, "B T"] | None = None,
        row_ids: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T V"]:
        """Returns logits of the next target token at every position, float32.

        Args:
          src: Source token ids.
          tgt_in: Target token ids shifted right: beginning of sentence first.
          deterministic: False enables dropout, and needs ``rngs={"dropout": key}``. Static: with
            ``nn.remat`` pass it by position and name it in ``static_argnums``.
          src_segments: n on the n-th pair of a packed row, 0 on padding; ``src != 0`` when None.
          src_positions: Position of every token in its sentence, less than ``config.max_length``;
            0, 1, ... when None.
          tgt_segments: Segments of the target; ``tgt_in != 0`` when None.
          tgt_positions: Positions of the target; 0, 1, ... when None.
          row_ids: Index of each row in the global batch, for dropout; 0, 1, ... when None.

        Raises:
          UserError: Tokens are not [batch, length], a sequence is longer than
            ``config.max_length``, or an id is out of range. Within ``jax.jit`` ids cannot be
            checked, and an id out of range gives NaN.
        """
        check_ids("src", src, self.config.vocab_size)
        check_ids("tgt_in", tgt_in, self.config.output_size)

        if src.shape[0] != tgt_in.shape[0]:
            raise UserError(
                f"Transformer: expected as many rows in src as in tgt_in, got {src.shape[0]} and "
                f"{tgt_in.shape[0]}"
            )

        src_segments = _segments(src) if src_segments is None else src_segments
        encoded = self.encode(
            src,
            src_segments,
            src_positions,
            row_ids=row_ids,
            deterministic=deterministic,
        )

        features = self.decode(
            tgt_in,
            encoded,
            src_segments,
            tgt_segments=tgt_segments,
            tgt_positions=tgt_positions,
            row_ids=row_ids,
            deterministic=deterministic,
        )
        return self.logits(features)

    def encode(
        self,
        src: Int[Array, "B S"],
        segments: Int[Array, "B S"] | None = None,
        positions: Int[Array, "B S"] | None = None,
        *,
        row_ids: Int[Array, " B"] | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "B S D"]:
        """Encodes source sentences. Arguments as for ``__call__``."""
        segments = _segments(src) if segments is None else segments
        x = self.embed_source(src, positions)

        batch, length = src.shape
        dropout = dropout_rows(batch, deterministic, row_ids)
        keys = Keys.of_sequence(length, segments, positions)
        x = self.src_dropout(x, dropout)
        return self.encoder(x, keys, dropout=dropout)

    def decode(
        self,
        tgt_in: Int[Array, "B T"],
        encoded: Float[Array, "B S D"],
        src_segments: Int[Array, "B S"],
        tgt_segments: Int[Array, "B T"] | None = None,
        tgt_positions: Int[Array, "B T"] | None = None,
        *,
        row_ids: Int[Array, " B"] | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "B T D"]:
        """Returns the decoder's output for whole target sequences, the input of :meth:`logits`."""
        batch, length = tgt_in.shape
        segments = _segments(tgt_in) if tgt_segments is None else tgt_segments

        # A target token sees earlier tokens of its segment, and the source of its segment.
        keys = Keys.of_sequence(length, segments, tgt_positions, causal=True)
        memory_keys = Keys.of_memory(segments, src_segments)
        memory = Memory(encoded, memory_keys)

        x = self.embed(tgt_in, tgt_positions)
        dropout = dropout_rows(batch, deterministic, row_ids)
        x = self.tgt_dropout(x, dropout)
        return self.decoder(x, keys, memory, dropout=dropout)

    def start(
        self,
        src: Int[Array, "B S"],
        segments: Int[Array, "B S"] | None = None,
        *,
        num_beams: int = 1,
        capacity: int,
    ) -> StackCache:
        """Encodes source sentences, and returns an empty cache for decoding their translations.

        Segments are 0 on padding. The capacity is in tokens; see
        :meth:`~jaxformer.StackCache.grow`.
        """
        check_length("target", capacity, self.config.max_length)

        segments = _segments(src) if segments is None else segments
        encoded = self.encode(src, segments)

        return self.decoder.init_cache(
            rows=segments[:, 0],
            d_model=self.config.d_model,
            dtype=encoded.dtype.name,
            num_beams=num_beams,
            capacity=capacity,
            memory=encoded,
            memory_mask=segments != 0,
        )


def _segments(tokens: Int[Array, "B T"]) -> Int[Array, "B T"]:
    return (tokens != 0).astype(jnp.int32)
