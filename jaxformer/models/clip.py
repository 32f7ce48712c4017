"""CLIP (Radford et al. 2021): encoders of pictures and of texts, whose outputs share one space."""

import dataclasses
import math
from typing import Literal, NamedTuple

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from jaxformer.data.tokenizer import EOS
from jaxformer.errors import UserError
from jaxformer.fields import setting
from jaxformer.layout import expand_like
from jaxformer.models.architecture import (
    EmbeddingSettings,
    PaperArchitecture,
    StackSettings,
    check_divides,
)
from jaxformer.models.assembly import TokenModel, make_stack
from jaxformer.models.pictures import Pictures, PixelArchitecture
from jaxformer.models.vit import patches
from jaxformer.nn.dropout import Dropout, RowIds, dropout_rows
from jaxformer.nn.feed_forward import Activation
from jaxformer.nn.keys import Keys
from jaxformer.nn.matmul import matmul_nt, project
from jaxformer.nn.norm import LayerNorm
from jaxformer.nn.parameters import parameter
from jaxformer.nn.precision import ComputeDtype, activation_dtype, at_least_float32
from jaxformer.nn.stack import Remat

_FIRST_SCALE = 1 / 0.07  # of the cosines, before training


@dataclasses.dataclass(frozen=True, kw_only=True)
class CLIPConfig(PixelArchitecture, PaperArchitecture):
    """The architecture of :class:`CLIP`; by default CLIP with ViT-B/32.

    Fields that are not listed are of both encoders, and as in GPT2Config.

    Attributes:
      d_model: Width of the encoder of texts; also ``d_ff``, ``num_heads``, ``num_layers`` and
        ``max_length``.
      patch_size: Side of a patch in pixels.
      vision_d_model: Width of the encoder of pictures; also ``vision_d_ff``, ``vision_num_heads``
        and ``vision_num_layers``.
      embedding_dim: Size of the embeddings of pictures and texts.
    """

    architecture: Literal["clip"] = "clip"
    vocab_size: int = setting(49_408, "size", may_differ=True)
    d_model: int = setting(512, "size")
    d_ff: int = setting(2048, "size")
    num_heads: int = setting(8, "size")
    num_layers: int = setting(12, "size")
    max_length: int = setting(77, "size", may_differ=True)
    pixel_mean: str = "0.48145466 0.4578275 0.40821073"
    pixel_std: str = "0.26862954 0.26130258 0.27577711"
    patch_size: int = setting(32, "positive")
    vision_d_model: int = setting(768, "size")
    vision_d_ff: int = setting(3072, "size")
    vision_num_heads: int = setting(12, "size")
    vision_num_layers: int = setting(12, "size")
    embedding_dim: int = setting(512, "size")
    activation: Activation = "quick_gelu"
    dropout_rate: float = setting(0.0, "fraction", may_differ=True)
    attention_dropout_rate: float = setting(0.0, "fraction", may_differ=True)
    norm_epsilon: float = setting(1e-5, "positive")
    compute_dtype: ComputeDtype = setting("float32", may_differ=True, per_use=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_divides(self, "vision_num_heads", "vision_d_model")
        for side in ("height", "width"):
            check_divides(self, "patch_size", side)

    def vision_sizes(self) -> "CLIPConfig":
        """Returns a section whose text encoder has the sizes of the encoder of pictures."""
        return dataclasses.replace(
            self,
            d_model=self.vision_d_model,
            d_ff=self.vision_d_ff,
            num_heads=self.vision_num_heads,
            num_layers=self.vision_num_layers,
        )

    def embedding_settings(self) -> EmbeddingSettings:
        return EmbeddingSettings(positions="learned", dropout_rate=self.dropout_rate)

    @property
    def num_tokens(self) -> int:
        """Number of patches of a picture, and its class token."""
        return num_vision_tokens(self.image_shape, self.patch_size)


class Embeddings(NamedTuple):
    """Embeddings of pictures and of texts, not normalized."""

    images: Float[Array, "I E"]
    texts: Float[Array, "N E"]


def num_vision_tokens(image_shape: tuple[int, int, int], patch_size: int) -> int:
    """Returns the number of patches of a picture, and its class token."""
    height, width, _ = image_shape
    return (height // patch_size) * (width // patch_size) + 1


class VisionTower(nn.Module):
    """CLIP's encoder of pictures, without the norm after its last layer.

    As a :class:`~jaxformer.ViT`, but patches have no bias, and a norm precedes the layers. CLIP
    normalizes the output of the class token only; other models read the output as it is.

    Attributes:
      settings: Settings of the layers, whose norms are first.
      d_model: Width of the layers.
      image_shape: Height and width of the pictures in pixels, and the channels of a pixel.
      patch_size: Side of a patch in pixels.
      remat: As in :class:`~jaxformer.nn.stack.Stack`.
    """

    settings: StackSettings
    d_model: int
    image_shape: tuple[int, int, int]
    patch_size: int
    remat: Remat = "none"

    def setup(self) -> None:
        normal = nn.initializers.normal(0.02)
        *_, channels = self.image_shape
        num_tokens = num_vision_tokens(self.image_shape, self.patch_size)

        self.patches = parameter(
            self,
            "patches",
            nn.initializers.xavier_uniform(),
            (self.patch_size**2 * channels, self.d_model),
            axes=("patch", "d_model"),
            role="matrix",
        )
        self.class_token = parameter(self, "class_token", normal, (self.d_model,))
        self.positions = parameter(self, "positions", normal, (num_tokens, self.d_model))

        self.norm = LayerNorm(self.settings.norm_epsilon)
        self.dropout = Dropout(self.settings.dropout_rate)
        stack = make_stack(self.settings, remat=self.remat)
        self.encoder = stack.clone(final_norm=_Unchanged)

    def __call__(
        self,
        images: Pictures,
        *,
        dropout: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T D"]:
        """Returns the output of the last layer: of the class token, and of each patch.

        Args:
          images: Pixels, normalized.
          dropout: As in :class:`~jaxformer.nn.dropout.Dropout`.
        """
        if images.shape[1:] != self.image_shape:
            sizes = ", ".join(map(str, self.image_shape))
            raise UserError(f"expected pictures [batch, {sizes}], got {images.shape}")

        compute_dtype = self.settings.compute_dtype
        x = project(patches(images, self.patch_size), self.patches, compute_dtype=compute_dtype)
        class_token = jnp.zeros_like(x[:, :1]) + self.class_token  # [B, 1, D]
        x = jnp.concatenate([class_token, x], axis=1)  # [B, T, D]

        x = x + expand_like(self.positions, x)
        x = self.norm(x).astype(activation_dtype(compute_dtype, x))
        return self.encoder(self.dropout(x, dropout), dropout=dropout)


class _Unchanged(nn.Module):
    """Stands for the last norm of a stack that has none."""

    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        return x


class CLIP(TokenModel):
    """Two encoders, trained so that the embeddings of a picture and its text are similar.

    ``__call__`` compares all pictures with all texts; :meth:`image_embeddings` and
    :meth:`text_embeddings` embed one of the two. A text ends with [EOS], whose output stands for
    the whole text; 0 is padding.

    Departs from the paper: there is no decoder. Patches take the place of tokens in the encoder of
    pictures, and tokens of texts see earlier ones only.
    """

    config: CLIPConfig

    def setup(self) -> None:
        super().setup()
        c = self.config
        self.vision = VisionTower(
            c.vision_sizes().stack_settings(),
            c.vision_d_model,
            c.image_shape,
            c.patch_size,
            remat=self.remat,
        )
        self.vision_norm = LayerNorm(c.norm_epsilon)
        self.vision_projection = self._make_output("vision_projection", c.vision_d_model)

        self.embed = self._make_embedding(self.src_table, "positions")
        self.logits_bias = None
        self.dropout = Dropout(c.dropout_rate)
        self.text = make_stack(c.stack_settings(), causal=True, remat=self.remat)
        self.text_projection = self._make_output("text_projection", c.d_model)

        first_scale = nn.initializers.constant(math.log(_FIRST_SCALE))
        self.log_scale = parameter(self, "log_scale", first_scale, ())

    @nn.nowrap
    def _make_output(self, name: str, inputs: int) -> Array:
        """Creates the projection of an encoder to the space of embeddings."""
        normal = nn.initializers.normal(inputs**-0.5)
        return parameter(self, name, normal, (inputs, self.config.embedding_dim))

    def __call__(
        self,
        images: Pictures,
        tokens: Int[Array, "N T"],
        deterministic: bool = True,
        *,
        row_ids: RowIds = None,
    ) -> Float[Array, "B N"]:
        """Returns logits of the texts for each picture: their cosines, times :meth:`scale`.

        Args:
          images: Pixels as :meth:`CLIPConfig.scale_pixels` returns them.
          tokens: Token ids of the texts.
          deterministic: False enables dropout, and needs ``rngs={"dropout": key}``. Static.
          row_ids: As in :class:`~jaxformer.Transformer`, which also raises the same errors.
        """
        embeddings = self.embeddings(images, tokens, deterministic, row_ids=row_ids)
        seen = unit_vectors(embeddings.images)
        read = unit_vectors(embeddings.texts)
        return self.scale() * matmul_nt(seen, read)

    def embeddings(
        self,
        images: Pictures,
        tokens: Int[Array, "N T"],
        deterministic: bool = True,
        *,
        row_ids: RowIds = None,
    ) -> Embeddings:
        """Returns the embeddings of pictures and texts; arguments as for ``__call__``."""
        return Embeddings(
            images=self.image_embeddings(images, deterministic, row_ids=row_ids),
            texts=self.text_embeddings(tokens, deterministic, row_ids=row_ids),
        )

    def scale(self) -> Float[Array, ""]:
        """Returns the factor of the cosines, the inverse temperature."""
        return jnp.exp(self.log_scale)

    def image_embeddings(
        self,
        images: Pictures,
        deterministic: bool = True,
        *,
        row_ids: RowIds = None,
    ) -> Float[Array, "B E"]:
        """Returns the embeddings of pictures, not normalized."""
        dropout = dropout_rows(images.shape[0], deterministic, row_ids)
        features = self.vision(images, dropout=dropout)
        pooled = self.vision_norm(features[:, 0])  # [B, D], of the class token
        return _project(pooled, self.vision_projection)

    def text_embeddings(
        self,
        tokens: Int[Array, "B T"],
        deterministic: bool = True,
        *,
        row_ids: RowIds = None,
    ) -> Float[Array, "B E"]:
        """Returns the embeddings of texts, not normalized."""
        batch_size, length = tokens.shape
        dropout = dropout_rows(batch_size, deterministic, row_ids)
        x = self.dropout(self.embed(tokens), dropout)
        # Padding follows the end, which therefore does not see it.
        features = self.text(x, Keys.of_sequence(length, causal=True), dropout=dropout)

        end = (tokens == EOS).argmax(axis=1)  # [B], the first one
        pooled = jnp.take_along_axis(features, end[:, None, None], axis=1)[:, 0]
        return _project(pooled, self.text_projection)


def unit_vectors(x: Float[Array, "*rows E"]) -> Float[Array, "*rows E"]:
    """Returns vectors of length 1."""
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


def _project(x: Float[Array, "B D"], matrix: Float[Array, "D E"]) -> Float[Array, "B E"]:
    return x.astype(at_least_float32(x, matrix)) @ matrix
