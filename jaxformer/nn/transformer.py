"""The Transformer: encoder, decoder, shared embedding, and step-by-step decoding (section 3)."""

import functools
import math
import operator
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxformer.config import ModelConfig, Remat
from jaxformer.errors import UserError
from jaxformer.layout import zeros_beside
from jaxformer.nn.arguments import check_ids, check_model_config
from jaxformer.nn.dropout import Dropout
from jaxformer.nn.layers import DecoderLayer, EncoderLayer, LayerNorm
from jaxformer.nn.masks import causal_mask, segment_mask
from jaxformer.nn.positions import sinusoidal_positions
from jaxformer.nn.projection import PRODUCT, Int8Matrix, activation_dtype, look_up, project_to_rows
from jaxformer.nn.sharding import keep_rows_apart


class Cache(NamedTuple):
    """What decoding remembers: an ordinary pytree, passed in and returned.

    Per-layer tuples, in the dtype of activations; M is room for positions. Keys and values stay
    where they were written, at their position and their beam's place at the time: when a search
    moves hypotheses, it moves ``places`` alone, which say where each beam's own past lies. By the
    convention of :mod:`jaxformer.search.cache` arrays lead with [B, N], or with [B, 1] if the
    beams share them.

    Attributes:
      keys: Self-attention keys of the tokens so far.
      values: Self-attention values.
      cross_keys: Keys of the encoded source, computed once.
      cross_values: Values of the encoded source.
      source_mask: True where the source is not padding.
      places: Place in the beam, 0 to N - 1, of a beam's own token at every position, int32.
      index: Number of tokens decoded so far, int32.
    """

    keys: tuple[Float[Array, "B 1 H K M N"], ...]
    values: tuple[Float[Array, "B 1 H M N V"], ...]
    cross_keys: tuple[Float[Array, "B 1 H K S"], ...]
    cross_values: tuple[Float[Array, "B 1 H S V"], ...]
    source_mask: Bool[Array, "B 1 S"]
    places: Int[Array, "B N M"]
    index: Int[Array, ""]


def grow_cache(cache: Cache, max_length: int) -> Cache:
    """The same cache with room for ``max_length`` positions, if it has less."""

    def pad(leaf: Array, axis: int) -> Array:
        missing = max(0, _room(max_length) - leaf.shape[axis])
        return jnp.pad(leaf, [(0, missing if i == axis else 0) for i in range(leaf.ndim)])

    return cache._replace(
        keys=tuple(pad(keys, 4) for keys in cache.keys),
        values=tuple(pad(values, 3) for values in cache.values),
        places=pad(cache.places, 2),
    )


def unstack_decoder(params: PyTree, num_layers: int) -> PyTree:
    """The parameters with a tuple of decoder layers instead of arrays that lead with a layer axis.

    For :meth:`Transformer.decode_step` alone, in a loop over tokens: do it once, before the loop.
    """
    stacked = params["decoder"]["layers"]
    layers = tuple(jax.tree.map(operator.itemgetter(i), stacked) for i in range(num_layers))
    return {**params, "decoder": {**params["decoder"], "layers": layers}}


class Encoder(nn.Module):
    """A stack of N encoder layers; their parameters lead with a layer axis."""

    config: ModelConfig
    remat: Remat = "none"

    def setup(self) -> None:
        """Creates the layers, and the final norm that pre-norm needs."""
        self.layers = EncoderLayer(self.config)
        self.norm = _final_norm(self.config)

    def __call__(
        self,
        x: Float[Array, "B S D"],
        mask: Bool[Array, "B 1 S S"],
        *,
        rows: Int[Array, " B"] | None,
        deterministic: bool,
    ) -> Float[Array, "B S D"]:
        """Runs the stack."""

        def layer(module: EncoderLayer, x: Float[Array, "B S D"]):
            how = {"rows": rows, "deterministic": deterministic}
            return module(keep_rows_apart(x), mask, **how), None

        return keep_rows_apart(
            self.norm(_scan_layers(layer, self.config.num_layers, self.remat)(self.layers, x)[0])
        )


class Decoder(nn.Module):
    """A stack of N decoder layers; their parameters lead with a layer axis."""

    config: ModelConfig
    remat: Remat = "none"

    def setup(self) -> None:
        """Creates the layers, and the final norm that pre-norm needs."""
        self.layers = DecoderLayer(self.config)
        self.norm = _final_norm(self.config)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        encoded: Float[Array, "B S D"],
        self_mask: Bool[Array, "B 1 T T"],
        cross_mask: Bool[Array, "B 1 T S"],
        *,
        rows: Int[Array, " B"] | None,
        deterministic: bool,
    ) -> Float[Array, "B T D"]:
        """Runs the stack over whole target sequences."""

        def layer(module: DecoderLayer, x: Float[Array, "B T D"]):
            how = {"rows": rows, "deterministic": deterministic}
            return module(keep_rows_apart(x), encoded, self_mask, cross_mask, **how), None

        return keep_rows_apart(
            self.norm(_scan_layers(layer, self.config.num_layers, self.remat)(self.layers, x)[0])
        )

    def init_cache(
        self,
        encoded: Float[Array, "B S D"],
        source_mask: Bool[Array, "B S"],
        num_beams: int,
        max_length: int,
    ) -> Cache:
        """An empty cache; projects the encoded source once for every layer."""
        c = self.config
        layers = [layer.cross_attention.keys_values(encoded) for layer in self._unstacked()]
        beams, room = num_beams, _room(max_length)
        zeros = functools.partial(zeros_beside, source_mask[:, 0].astype(jnp.int32))
        keys = zeros((1, c.num_heads, c.key_size, room, beams), encoded.dtype)
        values = zeros((1, c.num_heads, room, beams, c.value_size), encoded.dtype)
        return Cache(
            keys=(keys,) * c.num_layers,
            values=(values,) * c.num_layers,
            cross_keys=tuple(jnp.moveaxis(k, 1, -1)[:, None] for k, _ in layers),
            cross_values=tuple(jnp.moveaxis(v, 1, 2)[:, None] for _, v in layers),
            source_mask=source_mask[:, None],
            places=zeros((beams, room), jnp.int32),
            index=jnp.zeros((), jnp.int32),
        )

    def step(self, x: Float[Array, "B N D"], cache: Cache) -> tuple[Float[Array, "B N D"], Cache]:
        """Runs the stack on one new token of each beam."""
        batch, beams, room = cache.places.shape
        here = cache.places[:, :, :1] * 0 + jnp.arange(beams, dtype=jnp.int32)[:, None]
        places = jax.lax.dynamic_update_slice_in_dim(cache.places, here, cache.index, axis=2)
        filled = jnp.arange(room) <= cache.index
        past = (places[..., None] == jnp.arange(beams)) & filled[:, None]
        past = past.reshape(batch, beams, -1)
        keys, values = list(cache.keys), list(cache.values)
        for i, layer in enumerate(self._unstacked()):
            x, keys[i], values[i] = layer.step(
                x,
                keys[i],
                values[i],
                cache.cross_keys[i],
                cache.cross_values[i],
                past,
                cache.source_mask,
                cache.index,
            )
        cache = cache._replace(
            keys=tuple(keys), values=tuple(values), places=places, index=cache.index + 1
        )
        return self.norm(x), cache

    def _unstacked(self) -> list[DecoderLayer]:
        # A scan over layers would copy the whole cache at every token; a loop updates it in place.
        layers = self.variables["params"]["layers"]
        if not isinstance(layers, tuple):
            layers = [
                jax.tree.map(operator.itemgetter(i), layers) for i in range(self.config.num_layers)
            ]
        layer = DecoderLayer(self.config, parent=None)
        return [layer.bind({"params": params}) for params in layers]


class Transformer(nn.Module):
    """The Transformer of "Attention Is All You Need", whole.

    Three verbs: :meth:`encode`, :meth:`decode`, and ``__call__``, which composes them into
    logits. :meth:`init_cache` and :meth:`decode_step` decode token by token.

    Token id 0 is padding unless segments say otherwise. Several pairs may be packed into a row:
    ``segments`` number them from 1 (0 is padding) and ``positions`` restart in each.

    Departs from the paper: ``config.embeddings="separate"``, which is optional, instead of tied.

    >>> from jaxformer.config import ModelConfig
    >>> config = ModelConfig(vocab_size=11, d_model=8, d_ff=16, num_heads=2, num_layers=1)
    >>> model = Transformer(config)
    >>> src, tgt_in = jnp.array([[3, 4, 1]]), jnp.array([[2, 5]])
    >>> params = model.init(jax.random.key(0), src, tgt_in)["params"]
    >>> model.apply({"params": params}, src, tgt_in).shape
    (1, 2, 11)

    Attributes:
      config: Its sizes.
      remat: What a backward pass computes again instead of keeping it; see ``TrainingConfig``.
    """

    config: ModelConfig
    remat: Remat = "none"

    def setup(self) -> None:
        """Creates the stacks, the embeddings, one and the same if tied, and the positions."""
        c = self.config
        check_model_config("Transformer", c)
        # Unit variance once multiplied by sqrt(d_model), like the sinusoids' own scale.
        initializer = nn.initializers.normal(stddev=c.d_model**-0.5)
        names = ["embedding"] * 3
        if c.embeddings == "separate":
            names = ["src_embedding", "tgt_embedding", "output_embedding"]
        sizes = dict(zip(names, (c.vocab_size, c.output_size, c.output_size), strict=True))
        tables = {
            name: self.param(name, initializer, (size, c.d_model), jnp.float32)
            for name, size in sizes.items()
        }
        self.src_table, self.tgt_table, self.output_table = (tables[name] for name in names)
        self.logits_bias = (
            self.param("logits_bias", nn.initializers.zeros, (c.output_size,), jnp.float32)
            if c.biases
            else None
        )
        if c.positions == "learned":
            learned = nn.initializers.normal(stddev=c.d_model**-0.5)
            shape = (c.max_length, c.d_model)
            self.src_positions = self.param("src_positions", learned, shape, jnp.float32)
            self.tgt_positions = self.param("tgt_positions", learned, shape, jnp.float32)
        else:
            self.src_positions = self.tgt_positions = sinusoidal_positions(c.max_length, c.d_model)
        self.src_dropout = Dropout(c.dropout_rate)
        self.tgt_dropout = Dropout(c.dropout_rate)
        self.encoder = Encoder(c, self.remat)
        self.decoder = Decoder(c, self.remat)

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
        rows: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T V"]:
        """Logits of the next target token at every position, float32.

        Args:
          src: Source token ids.
          tgt_in: Target token ids shifted right: beginning of sentence first.
          deterministic: False switches dropout on, and needs ``rngs={"dropout": key}``. Static:
            with ``nn.remat`` pass it by position and name it in ``static_argnums``.
          src_segments: 0 on padding, n on the n-th pair of a packed row; ``src != 0`` when None.
          src_positions: Position of every token in its sentence, less than
            ``config.max_length``; 0, 1, ... when None.
          tgt_segments: Likewise for the target.
          tgt_positions: Likewise for the target.
          rows: Number of each row in the global batch, which dropout is keyed by.

        Raises:
          UserError: Tokens are not [batch, length], a sequence is longer than
            ``config.max_length``, or an id is not in the vocabulary. Within ``jax.jit`` ids are
            not known: a wrong one gives NaN there.
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
            src, src_segments, src_positions, rows=rows, deterministic=deterministic
        )
        features = self.decode(
            tgt_in,
            encoded,
            src_segments,
            tgt_segments,
            tgt_positions,
            rows=rows,
            deterministic=deterministic,
        )
        return self.logits(features)

    def encode(
        self,
        src: Int[Array, "B S"],
        segments: Int[Array, "B S"] | None = None,
        positions: Int[Array, "B S"] | None = None,
        *,
        rows: Int[Array, " B"] | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "B S D"]:
        """Encodes source sentences; the arguments are those of ``__call__``."""
        how = {"rows": rows, "deterministic": deterministic}
        segments = _segments(src) if segments is None else segments
        x = self.src_dropout(self._embed(src, positions, self.src_table, self.src_positions), **how)
        return self.encoder(x, segment_mask(segments, segments), **how)

    def decode(
        self,
        tgt_in: Int[Array, "B T"],
        encoded: Float[Array, "B S D"],
        src_segments: Int[Array, "B S"],
        tgt_segments: Int[Array, "B T"] | None = None,
        tgt_positions: Int[Array, "B T"] | None = None,
        *,
        rows: Int[Array, " B"] | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "B T D"]:
        """The decoder's output for whole target sequences; :meth:`logits` projects it."""
        how = {"rows": rows, "deterministic": deterministic}
        segments = _segments(tgt_in) if tgt_segments is None else tgt_segments
        self_mask = segment_mask(segments, segments) & causal_mask(tgt_in.shape[1])
        cross_mask = segment_mask(segments, src_segments)
        x = self._embed(tgt_in, tgt_positions, self.tgt_table, self.tgt_positions)
        x = self.tgt_dropout(x, **how)
        return self.decoder(x, encoded, self_mask, cross_mask, **how)

    def logits(self, features: Float[Array, "*rows D"]) -> Float[Array, "*rows V"]:
        """Pre-softmax projection with the transposed embedding (section 3.4), float32."""
        product = project_to_rows(features, self.output_table)
        return product if self.logits_bias is None else product + self.logits_bias

    def output_projection(self) -> tuple[Float[Array, "V D"], Float[Array, " V"] | None]:
        """What :meth:`logits` multiplies with and adds, for losses that never hold the logits.

        Raises:
          ValueError: The parameters are rounded to int8, which nothing can be trained with.
        """
        if isinstance(self.output_table, Int8Matrix):
            raise ValueError("parameters are rounded to int8: expected those they were made from")
        return self.output_table, self.logits_bias

    def init_cache(
        self,
        encoded: Float[Array, "B S D"],
        src_segments: Int[Array, "B S"],
        *,
        num_beams: int = 1,
        max_length: int,
    ) -> Cache:
        """An empty cache for decoding at most ``max_length`` tokens of ``num_beams`` beams."""
        _check_length("target", max_length, self.config.max_length)
        return self.decoder.init_cache(encoded, src_segments != 0, num_beams, max_length)

    def decode_step(
        self, tokens: Int[Array, "B N"], cache: Cache
    ) -> tuple[Float[Array, "B N V"], Cache]:
        """Logits of the next token of every beam, float32, and the cache that includes ``tokens``.

        The first step takes the beginning-of-sentence token.
        """
        positions = jnp.broadcast_to(cache.index, tokens.shape)
        x = self._embed(tokens, positions, self.tgt_table, self.tgt_positions)
        x, cache = self.decoder.step(x, cache)
        return self.logits(x), cache

    def _embed(
        self,
        tokens: Int[Array, "B T"],
        positions: Int[Array, "B T"] | None,
        table: Float[Array, "V D"] | Int8Matrix,
        encodings: Float[Array, "M D"] | Float[np.ndarray, "M D"],
    ) -> Float[Array, "B T D"]:
        """Embeddings times sqrt(d_model) (section 3.4) plus positions (section 3.5)."""
        check_ids("Transformer", tokens, jax.tree.leaves(table)[0].shape[0])
        if positions is None:
            _check_length("sequence", tokens.shape[1], self.config.max_length)
            encoding = jnp.asarray(encodings)[: tokens.shape[1]]
        else:
            encoding = jnp.asarray(encodings)[positions]
        embedded = look_up(table, tokens) * math.sqrt(self.config.d_model)
        return (embedded + encoding).astype(activation_dtype(self.config))


def _final_norm(config: ModelConfig) -> Callable:
    return LayerNorm(config.norm_epsilon) if config.norm_position == "pre" else lambda x: x


def _room(length: int) -> int:
    # Whole vector registers: XLA's sums over 15 or 30 positions take ten times as long on CPUs.
    return -(-length // 16) * 16


def _segments(tokens: Int[Array, "B T"]) -> Int[Array, "B T"]:
    return (tokens != 0).astype(jnp.int32)


def _check_length(what: str, length: int, longest: int) -> None:
    if length > longest:
        raise ValueError(
            f"{what} of {length} tokens: the model allows at most {longest} (model.max_length)"
        )


def _scan_layers(layer: Callable, num_layers: int, remat: Remat) -> Callable:
    if remat != "none":
        policy = jax.checkpoint_policies.save_only_these_names(PRODUCT)
        layer = nn.remat(layer, prevent_cse=False, policy=policy if remat == "dots" else None)
    # Stacking what the backward pass needs takes longer than compiling every layer (on TPUs, not
    # measured). But in one piece of code the compiler would find that what is computed again is
    # there already.
    unrolled = jax.default_backend() in ("cpu", "gpu") and remat == "none"
    return nn.scan(
        layer,
        variable_axes={"params": 0, "intermediates": 0},
        split_rngs={"params": True, "dropout": True},
        length=num_layers,
        unroll=num_layers if unrolled else 1,
    )
