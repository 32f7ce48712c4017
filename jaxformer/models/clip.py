"""CLIP (Radford et al. 2021): encoders of pictures and of texts, whose outputs share one space."""

import dataclasses
from typing import Literal

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from jaxformer.data.tokenizer import EOS
from jaxformer.errors import UserError
from jaxformer.layout import expand_like
from jaxformer.models.architecture import StackSettings
from jaxformer.models.assembly import TokenModel, make_stack
from jaxformer.models.dual_encoder import (
    DualEncoder,
    DualEncoderArchitecture,
    num_vision_tokens,
    project_pooled,
)
from jaxformer.models.pictures import Pictures
from jaxformer.models.vit import patches
from jaxformer.nn.dropout import Dropout, RowIds, dropout_rows
from jaxformer.nn.keys import Keys
from jaxformer.nn.matmul import project
from jaxformer.nn.norm import LayerNorm
from jaxformer.nn.parameters import parameter
from jaxformer.nn.precision import activation_dtype
from jaxformer.nn.rematerialization import Remat


@dataclasses.dataclass(frozen=True, kw_only=True)
class CLIPConfig(DualEncoderArchitecture):
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
    pixel_mean: str = "0.48145466 0.4578275 0.40821073"
    pixel_std: str = "0.26862954 0.26130258 0.27577711"

    reads_causally = True


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


class CLIP(DualEncoder, TokenModel):
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

        self.log_scale = self._make_log_scale()

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
        return project_pooled(pooled, self.vision_projection)

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
        return project_pooled(pooled, self.text_projection)
