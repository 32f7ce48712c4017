"""Gato (Reed et al. 2022): one decoder over texts, pictures, observations and actions."""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int, Num, UInt8

from jaxformer.data.episodes import TokenIds, scale_patches
from jaxformer.errors import UserError
from jaxformer.fields import setting
from jaxformer.layout import expand_like, take_rows
from jaxformer.models.architecture import (
    EmbeddingSettings,
    PaperArchitecture,
    StackSettings,
    check_divides,
)
from jaxformer.models.assembly import make_stack
from jaxformer.models.stepwise import StepwiseModel
from jaxformer.models.vit import patches
from jaxformer.nn.argument_checks import check_length
from jaxformer.nn.dropout import Dropout, RowIds, dropout_rows, random_bits
from jaxformer.nn.embedding import embed, output_logits
from jaxformer.nn.feed_forward import Activation
from jaxformer.nn.keys import Keys
from jaxformer.nn.matmul import project
from jaxformer.nn.parameters import parameter
from jaxformer.nn.precision import ComputeDtype, activation_dtype
from jaxformer.nn.stack import StackCache

GRID_BINS = 128  # that positions along a side of a picture are quantized to


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatoConfig(PaperArchitecture):
    """The architecture of a :class:`Gato`; by default the largest one published.

    Fields that are not listed are as in :class:`~jaxformer.models.gpt2.GPT2Config`.

    Attributes:
      vocab_size: Number of tokens of texts. Discrete numbers share the first 1,024 ids; 1,024 bins
        of continuous numbers and a separator follow.
      height: Height of the pictures in pixels; also ``width``, and ``channels`` of each pixel.
      patch_size: Side of a patch in pixels.
      patch_channels: Channels of the ResNet block that embeds patches.
      patch_groups: Groups of channels that are normalized together in it.
      num_positions: Largest number of items of an observation, or of a text.
      window: Maximum distance between an item and the earlier ones that it sees. An episode may
        then have any length; with None, it has at most ``max_length`` items.
      max_length: Number of items of a row.
    """

    architecture: Literal["gato"] = "gato"
    vocab_size: int = setting(32_000, "size", may_differ=True)
    height: int = setting(224, "positive")
    width: int = setting(224, "positive")
    channels: int = setting(3, "positive")
    patch_size: int = setting(16, "positive")
    patch_channels: int = setting(64, "positive")
    patch_groups: int = setting(32, "positive")
    d_model: int = setting(2048, "size")
    d_ff: int = setting(8192, "size")
    num_heads: int = setting(16, "size")
    num_layers: int = setting(24, "size")
    dropout_rate: float = setting(0.0, "fraction", may_differ=True)
    attention_dropout_rate: float = setting(0.0, "fraction", may_differ=True)
    activation: Activation = "gelu"
    norm_epsilon: float = setting(1e-6, "positive")
    num_positions: int = setting(512, "size")
    window: int | None = setting(None, "positive", may_differ=True)
    max_length: int = setting(1024, "size", may_differ=True)
    compute_dtype: ComputeDtype = setting("float32", may_differ=True, per_use=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        for side in ("height", "width"):
            check_divides(self, "patch_size", side)
        check_divides(self, "patch_groups", "patch_channels")

    def stack_settings(self) -> StackSettings:
        return dataclasses.replace(super().stack_settings(), window=self.window)

    def embedding_settings(self) -> EmbeddingSettings:
        return EmbeddingSettings(is_scaled=True, dropout_rate=self.dropout_rate)

    @property
    def ids(self) -> TokenIds:
        return TokenIds(self.vocab_size)

    @property
    def output_size(self) -> int:
        return self.ids.count

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return self.height, self.width, self.channels

    @property
    def grid(self) -> tuple[int, int]:
        """Number of patches along the height and along the width."""
        return self.height // self.patch_size, self.width // self.patch_size

    @property
    def num_patches(self) -> int:
        rows, columns = self.grid
        return rows * columns


class PatchEmbedding(nn.Module):
    """Embeds patches by a ResNet block, and their rows and columns (appendix C.2).

    The block is of version 2 (He et al. 2016): x + conv(gelu(norm(conv(gelu(norm(x)))))), with
    group normalization. A convolution before it widens the pixels to its channels.

    The sizes are not published. Here all kernels are 3 by 3.
    """

    config: GatoConfig

    @nn.compact
    def __call__(
        self,
        pictures: UInt8[Array, "B M Y X C"],
        dropout: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B N D"]:
        """Returns embeddings of the patches of each row's pictures, in their order.

        Pixels are from 0 to 255. With ``dropout``, as for :class:`~jaxformer.nn.Dropout`, places
        are random.
        """
        c = self.config
        batch, count, *shape = pictures.shape
        if tuple(shape) != c.image_shape:
            sizes = ", ".join(map(str, c.image_shape))
            raise UserError(
                f"Gato: expected pictures [batch, number, {sizes}], got {pictures.shape}"
            )

        flat = patches(pictures.reshape(-1, *shape), c.patch_size)
        pixels = scale_patches(flat.astype(jnp.float32), c.patch_size)
        x = pixels.reshape(-1, c.patch_size, c.patch_size, c.channels)

        x = self._convolve("widening", x)  # [N, p, p, W]
        residual = self._convolve("first", nn.gelu(self._normalize("first", x)))
        residual = self._convolve("second", nn.gelu(self._normalize("second", residual)))
        x = x + residual

        glorot = nn.initializers.xavier_uniform()
        sizes = (c.patch_size**2 * c.patch_channels, c.d_model)
        matrix = parameter(self, "output", glorot, sizes, ("patch", "d_model"), "matrix")
        bias = parameter(self, "output_bias", nn.initializers.zeros, (c.d_model,))
        features = x.reshape(batch, count * c.num_patches, -1)
        embedded = project(features, matrix, bias, compute_dtype=c.compute_dtype)
        return embedded + self._places(batch, count, dropout)

    def _convolve(self, name: str, x: Float[Array, "N Y X C"]) -> Float[Array, "N Y X W"]:
        channels = self.config.patch_channels
        he = nn.initializers.he_normal()
        kernel = parameter(self, f"{name}_kernel", he, (3, 3, x.shape[-1], channels))
        bias = parameter(self, f"{name}_bias", nn.initializers.zeros, (channels,))
        convolved = jax.lax.conv_general_dilated(
            x,
            kernel,
            window_strides=(1, 1),
            padding="SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        return convolved + bias

    def _normalize(self, name: str, x: Float[Array, "N Y X W"]) -> Float[Array, "N Y X W"]:
        """Normalizes the groups of channels of each patch."""
        c = self.config
        scale = parameter(self, f"{name}_norm_scale", nn.initializers.ones, (c.patch_channels,))
        shift = parameter(self, f"{name}_norm_bias", nn.initializers.zeros, (c.patch_channels,))

        groups = x.reshape(*x.shape[:3], c.patch_groups, -1)
        mean = groups.mean(axis=(1, 2, 4), keepdims=True)
        variance = groups.var(axis=(1, 2, 4), keepdims=True)
        normalized = (groups - mean) * jax.lax.rsqrt(variance + c.norm_epsilon)
        return normalized.reshape(x.shape) * scale + shift

    def _places(
        self,
        batch: int,
        count: int,
        dropout: Int[Array, " B"] | None,
    ) -> Float[Array, "#B N D"]:
        """Returns the embeddings of the rows and of the columns of all patches."""
        rows, columns = self.config.grid
        numbers = np.arange(count * rows * columns) % (rows * columns)
        sides = {
            "row_positions": (numbers // columns, rows),
            "column_positions": (numbers % columns, columns),
        }

        bits = None
        if dropout is not None:
            seed = jax.random.bits(self.make_rng("dropout"), (2,), jnp.uint32)
            bits = random_bits(seed, dropout, (len(sides), len(numbers)))

        total = 0.0
        for side, (name, (cells, number)) in enumerate(sides.items()):
            normal = nn.initializers.normal(0.02)
            table = parameter(self, name, normal, (GRID_BINS, self.config.d_model))
            own_bits = None if bits is None else bits[:, side]
            bins = grid_bins(cells, number, own_bits)
            total = total + take_rows(table, bins)
        return jnp.asarray(total)


def grid_bins(
    cells: Int[np.ndarray, " N"],
    number: int,
    bits: Array | None = None,
) -> Int[Array, "#B N"]:
    """Returns a bin in the interval of each cell, among ``number`` cells along a side.

    Args:
      cells: Numbers of the cells.
      number: Number of cells along the side, which has 128 bins.
      bits: Random bits [B, N], which select any bin of the interval; None selects its mean.
    """
    low = cells * GRID_BINS // number
    high = np.maximum((cells + 1) * GRID_BINS // number, low + 1)
    if bits is None:
        return jnp.asarray((low + high) // 2, jnp.int32)[None]

    width = jnp.asarray(high - low, jnp.uint32)
    return jnp.asarray(low, jnp.int32) + (bits % width).astype(jnp.int32)


class Gato(StepwiseModel):
    """Predicts the next token of a text, or the next action, from all items before it.

    Departs from the paper: there is no encoder.

    Departs from Reed et al., too: feed-forward networks have GELU, and not GEGLU, and layers are
    not dropped at random.

    :meth:`start`, :meth:`prefill` and :meth:`step` decode texts as
    :class:`~jaxformer.LanguageModel` does.
    """

    config: GatoConfig

    def setup(self) -> None:
        super().setup()
        c = self.config
        self.positions = self._make_table(
            "positions",
            c.num_positions + 1,
            axes=(),
            role="vector",
        )
        self.patch_embedding = PatchEmbedding(c)
        self.logits_bias = None
        self.dropout = Dropout(c.dropout_rate)
        self.decoder = make_stack(c.stack_settings(), causal=True, remat=self.remat)

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        pictures: UInt8[Array, "B M Y X C"] | None = None,
        deterministic: bool = True,
        *,
        positions: Int[Array, "B T"] | None = None,
        is_patch: Bool[Array, "B T"] | None = None,
        segments: Int[Array, "B T"] | None = None,
        row_ids: RowIds = None,
    ) -> Float[Array, "B T V"]:
        """Returns logits of the next token after every item, float32.

        Args:
          tokens: Token ids, and numbers of patches among the patches of a row's pictures.
          pictures: Pictures of each row; None without any.
          deterministic: False enables dropout and random places of patches. Static.
          positions: Local positions, as in :class:`~jaxformer.data.episodes.Items`; 0, 1, ... when
            None.
          is_patch: True for patches; None for tokens only.
          segments: n on the n-th sequence of a row, 0 on padding; one sequence when None.
          row_ids: As in :class:`~jaxformer.Transformer`.

        Raises:
          UserError: Pictures have another size than in the config.
        """
        features = self.features(
            tokens,
            pictures,
            deterministic,
            positions=positions,
            is_patch=is_patch,
            segments=segments,
            row_ids=row_ids,
        )
        return self.logits(features)

    def features(
        self,
        tokens: Int[Array, "B T"],
        pictures: UInt8[Array, "B M Y X C"] | None = None,
        deterministic: bool = True,
        *,
        positions: Int[Array, "B T"] | None = None,
        is_patch: Bool[Array, "B T"] | None = None,
        segments: Int[Array, "B T"] | None = None,
        row_ids: RowIds = None,
    ) -> Float[Array, "B T D"]:
        """Returns the input of :meth:`logits`; see ``__call__``."""
        batch, length = tokens.shape
        check_length("row", length, self.config.max_length)
        dropout = dropout_rows(batch, deterministic, row_ids)
        x = self.embed_items(
            tokens,
            pictures,
            positions=positions,
            is_patch=is_patch,
            dropout=dropout,
        )

        keys = Keys.of_sequence(length, segments, causal=True)
        x = self.dropout(x, dropout)
        return self.decoder(x, keys, dropout=dropout)

    def embed_items(
        self,
        tokens: Int[Array, "B T"],
        pictures: UInt8[Array, "B M Y X C"] | None = None,
        *,
        positions: Int[Array, "#B T"] | None = None,
        is_patch: Bool[Array, "B T"] | None = None,
        dropout: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T D"]:
        """Returns embeddings of tokens and patches, and of their local positions."""
        c = self.config
        ids = tokens if is_patch is None else jnp.where(is_patch, 0, tokens)
        x = embed(self.output_table, ids) * c.d_model**0.5

        if pictures is not None:
            patch_embeddings = self.patch_embedding(pictures, dropout)  # [B, N, D]
            if is_patch is not None:
                numbers = jnp.where(is_patch, tokens, 0)[..., None]
                chosen = jnp.take_along_axis(patch_embeddings, numbers, axis=1)
                x = jnp.where(is_patch[..., None], chosen, x)

        if positions is None:
            positions = jnp.arange(tokens.shape[1])[None]
        # The first row is of actions, whose position is -1.
        encoding = take_rows(self.positions, positions + 1)
        x = x + expand_like(jnp.asarray(encoding, x.dtype), x)
        return x.astype(activation_dtype(c.compute_dtype, x))

    def embed(
        self,
        tokens: Int[Array, "B T"],
        positions: Int[Array, "#B T"] | None = None,
        longest: int | None = None,
    ) -> Float[Array, "B T D"]:
        """Returns embeddings of the tokens of texts, which are one timestep."""
        return self.embed_items(tokens, positions=positions)

    def start(
        self,
        rows: Num[Array, "B ..."],
        *,
        num_beams: int = 1,
        capacity: int,
    ) -> StackCache:
        """Returns an empty cache, as ``LanguageModel.start`` does; with a window, of any length."""
        c = self.config
        if c.window is None:
            check_length("sequence", capacity, c.max_length)

        # Only the number and the sharding of the rows matter: one value of each is enough.
        values = rows.reshape(rows.shape[0], -1)[:, 0].astype(jnp.int32)  # [B]
        return self.decoder.init_cache(
            values,
            c.d_model,
            activation_dtype(c.compute_dtype, self.output_table),
            num_beams=num_beams,
            capacity=capacity,
        )

    def prefill_picture(
        self,
        pictures: UInt8[Array, "B Y X C"],
        cache: StackCache,
    ) -> StackCache:
        """Returns the cache after a picture, which a caption follows."""
        numbers = jnp.arange(self.config.num_patches, dtype=jnp.int32)
        tokens = jnp.broadcast_to(numbers, (len(pictures), len(numbers)))
        x = self.embed_items(
            tokens,
            pictures[:, None],
            is_patch=jnp.ones_like(tokens, bool),
        )
        _, cache = self.decoder.prefill(x, cache, len(numbers))
        return cache

    def step_at(
        self,
        tokens: Int[Array, "B N"],
        position: Int[Array, ""],
        cache: StackCache,
        output: tuple[Any, Any],
    ) -> tuple[Float[Array, "B N V"], StackCache]:
        """Works as :meth:`step` does, for tokens at a local position."""
        x = self.embed_items(tokens, positions=position[None, None])
        x, cache = self.decoder.step(x, cache)
        return output_logits(x, *output), cache
