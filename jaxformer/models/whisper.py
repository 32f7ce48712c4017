"""Whisper (Radford et al. 2022): the Transformer on log-mel spectrograms of sound."""

import dataclasses
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from jaxformer.errors import UserError
from jaxformer.fields import setting
from jaxformer.layout import expand_like
from jaxformer.models.architecture import (
    EmbeddingSettings,
    PaperArchitecture,
    StackSettings,
    check_absent_tokens,
)
from jaxformer.models.transformer import Transformer
from jaxformer.nn.argument_checks import check_ids, check_length
from jaxformer.nn.convolution import windows
from jaxformer.nn.dropout import RowIds, dropout_rows
from jaxformer.nn.feed_forward import Activation, activate
from jaxformer.nn.log_mel import HOP, SAMPLE_RATE, log_mel
from jaxformer.nn.matmul import project
from jaxformer.nn.parameters import parameter
from jaxformer.nn.positions import tensor2tensor_positions
from jaxformer.nn.precision import ComputeDtype, activation_dtype
from jaxformer.nn.stack import StackCache

_KERNEL = 3  # frames that a convolution sees
_STRIDE = 2  # frames of features for each position of the encoder


@dataclasses.dataclass(frozen=True, kw_only=True)
class WhisperConfig(PaperArchitecture):
    """The architecture of :class:`Whisper`; by default the tiny multilingual model.

    Fields that are not listed are as in :class:`~jaxformer.models.gpt2.GPT2Config`.

    Attributes:
      num_mel_bins: Number of mel filters: 80, or 128 from large-v3 on.
      max_source_length: Number of positions of the encoder, each of 20 milliseconds. All inputs
        have this length: 30 seconds by default.
      num_decoder_layers: Number of decoder layers; ``num_layers`` when None.
      max_length: Maximum sequence length of the decoder in tokens, and the number of its learned
        positions.
    """

    architecture: Literal["whisper"] = "whisper"
    vocab_size: int = setting(51_865, "size", may_differ=True)
    num_mel_bins: int = setting(80, "size")
    max_source_length: int = setting(1500, "size")
    d_model: int = setting(384, "size")
    d_ff: int = setting(1536, "size")
    num_heads: int = setting(6, "size")
    num_layers: int = setting(4, "size")
    num_decoder_layers: int | None = setting(None, "positive")
    dropout_rate: float = setting(0.0, "fraction", may_differ=True)
    attention_dropout_rate: float = setting(0.0, "fraction", may_differ=True)
    activation: Activation = "gelu_exact"
    norm_epsilon: float = setting(1e-5, "positive")
    absent_tokens: str = setting("", may_differ=True)
    max_length: int = setting(448, "size", may_differ=True)
    compute_dtype: ComputeDtype = setting("float32", may_differ=True, per_use=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_absent_tokens(self.absent_tokens)
        # It refuses sizes that it cannot encode.
        tensor2tensor_positions(0, self.d_model)

    def stack_settings(self) -> StackSettings:
        return dataclasses.replace(super().stack_settings(), biases="except_key")

    def embedding_settings(self) -> EmbeddingSettings:
        return EmbeddingSettings(
            positions="learned",
            dropout_rate=self.dropout_rate,
            absent_tokens=self.absent_tokens,
        )

    @property
    def decoder_layers(self) -> int:
        return self.num_layers if self.num_decoder_layers is None else self.num_decoder_layers

    @property
    def features_shape(self) -> tuple[int, int]:
        """Number of frames of an input, and of features of each."""
        return _STRIDE * self.max_source_length, self.num_mel_bins

    @property
    def sample_rate(self) -> int:
        """Samples per second of an input."""
        return SAMPLE_RATE

    @property
    def is_standardized(self) -> bool:
        """False, since samples of a recording keep their mean and variance."""
        return False

    @property
    def longest(self) -> int:
        """Number of samples of an input."""
        num_frames, _ = self.features_shape
        return num_frames * HOP

    @property
    def shortest(self) -> int:
        """Number of samples of an input: all have the same."""
        return self.longest

    def encoder_inputs(
        self,
        samples: Float[Array, "B N"],
        lengths: Int[Array, " B"],
    ) -> tuple[Float[Array, "B F M"]]:
        """Returns what the encoder reads of waves, whose padding it hears as silence."""
        return (log_mel(samples, self.num_mel_bins),)


class _SoundEmbedding(NamedTuple):
    """Two convolutions, each a matrix and its bias, and the positions that are added to them."""

    conv1: tuple[Any, Any]
    conv2: tuple[Any, Any]
    positions: Float[Array, "S D"]


class Whisper(Transformer):
    """Whisper, which decodes as :class:`~jaxformer.Transformer` does, given log-mel spectrograms.

    Two convolutions of three frames, with GELU, take the place of embeddings of source tokens. The
    second has a stride of two. The encoder's positions are sinusoids, which are not trained; a
    model has its own copy, rounded as in its file. Norms come first in all layers.

    In training, it has no dropout within feed-forward networks, and skips no layers.

    >>> import jax
    >>> config = WhisperConfig(vocab_size=11, d_model=8, d_ff=16, num_heads=2, num_layers=1,
    ...                        num_mel_bins=5, max_source_length=6)
    >>> model = Whisper(config)
    >>> features, tgt_in = jnp.zeros((1, 12, 5)), jnp.array([[2, 5]])
    >>> params = model.init(jax.random.key(0), features, tgt_in)["params"]
    >>> model.apply({"params": params}, features, tgt_in).shape
    (1, 2, 11)
    """

    config: WhisperConfig

    @nn.nowrap
    def _make_source_embedding(self) -> _SoundEmbedding:
        c = self.config
        axes = ("d_model", None)
        first_inputs = _KERNEL * c.num_mel_bins
        conv1 = self._make_linear("conv1", c.d_model, axes, inputs=first_inputs)
        conv2 = self._make_linear("conv2", c.d_model, axes, inputs=_KERNEL * c.d_model)

        shape = (c.max_source_length, c.d_model)
        positions = parameter(self, "src_positions", _sinusoids, shape)
        return _SoundEmbedding(conv1, conv2, positions)

    def __call__(
        self,
        features: Float[Array, "B F M"],
        tgt_in: Int[Array, "B T"],
        deterministic: bool = True,
        *,
        tgt_segments: Int[Array, "B T"] | None = None,
        row_ids: RowIds = None,
    ) -> Float[Array, "B T V"]:
        """Returns logits of the next target token at every position, float32.

        Args:
          features: Log-mel spectrograms of a fixed length; see :func:`~jaxformer.nn.log_mel`.
          tgt_in: Target token ids shifted right: beginning of sentence first.
          deterministic: As the other arguments in :class:`~jaxformer.Transformer`.
          tgt_segments: Segments of the target; ``tgt_in != 0`` when None.
          row_ids: Index of each row in the global batch, for dropout; 0, 1, ... when None.

        Raises:
          UserError: The features have another shape, or as in :class:`~jaxformer.Transformer`.
        """
        check_ids("tgt_in", tgt_in, self.config.output_size)
        decoded = self.target_features(
            features,
            tgt_in,
            tgt_segments=tgt_segments,
            row_ids=row_ids,
            deterministic=deterministic,
        )
        return self.logits(decoded)

    def target_features(
        self,
        features: Float[Array, "B F M"],
        tgt_in: Int[Array, "B T"],
        *,
        tgt_segments: Int[Array, "B T"] | None = None,
        row_ids: RowIds = None,
        deterministic: bool = True,
    ) -> Float[Array, "B T D"]:
        """Returns the decoder's output, the input of :meth:`logits`; see ``__call__``."""
        encoded = self.encode(features, row_ids=row_ids, deterministic=deterministic)
        return self.decode(
            tgt_in,
            encoded,
            _all_visible(encoded),
            tgt_segments=tgt_segments,
            row_ids=row_ids,
            deterministic=deterministic,
        )

    def encode(
        self,
        features: Float[Array, "B F M"],
        *,
        row_ids: RowIds = None,
        deterministic: bool = True,
    ) -> Float[Array, "B S D"]:
        """Encodes log-mel spectrograms. Arguments as for ``__call__``."""
        c = self.config
        expected = c.features_shape
        if features.shape[1:] != expected:
            frames, bins = expected
            raise UserError(
                f"Whisper: expected features [batch, {frames}, {bins}], got {features.shape}"
            )

        embedding: _SoundEmbedding = self.embed_source
        x = project(_padded_windows(features, stride=1), *embedding.conv1, c.compute_dtype)
        x = activate("gelu_exact", x)
        x = project(_padded_windows(x, stride=_STRIDE), *embedding.conv2, c.compute_dtype)
        x = activate("gelu_exact", x)  # [B, S, D]

        positions = lax.stop_gradient(embedding.positions)
        x = x + expand_like(positions, x)
        x = x.astype(activation_dtype(c.compute_dtype, x))

        dropout = dropout_rows(features.shape[0], deterministic, row_ids)
        x = self.src_dropout(x, dropout)
        return self.encoder(x, dropout=dropout)

    def start(
        self,
        features: Float[Array, "B F M"],
        *,
        num_beams: int = 1,
        capacity: int,
    ) -> StackCache:
        """Encodes log-mel spectrograms, and returns an empty cache for decoding.

        The capacity is in tokens; see :meth:`~jaxformer.StackCache.grow`.
        """
        check_length("target", capacity, self.config.max_length)
        encoded = self.encode(features)
        visible = _all_visible(encoded)

        return self.decoder.init_cache(
            visible[:, 0],
            self.config.d_model,
            encoded.dtype.name,
            num_beams=num_beams,
            capacity=capacity,
            memory=encoded,
            memory_mask=visible != 0,
        )


def _padded_windows(x: Float[Array, "B F C"], stride: int) -> Float[Array, "B S W"]:
    """Returns each frame with the one before and the one after, and zeros beyond the ends."""
    padded = jnp.pad(x, ((0, 0), (1, 1), (0, 0)))
    return windows(padded, _KERNEL, stride)


def _all_visible(encoded: Float[Array, "B S D"]) -> Int[Array, "B S"]:
    """Returns segments without padding: Whisper also attends to the silence after a sound."""
    return jnp.ones(encoded.shape[:2], jnp.int32)


def _sinusoids(key: Array, shape: tuple[int, int], dtype: DTypeLike) -> Float[Array, "S D"]:
    """Returns the sinusoids, as an initializer of a parameter."""
    return jnp.asarray(tensor2tensor_positions(*shape), dtype)
