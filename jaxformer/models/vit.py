"""The Vision Transformer (Dosovitskiy et al. 2021): the encoder of the paper on patches.

With other values of a few fields, it is DeiT (Touvron et al. 2021), BEiT (Bao et al. 2022) or
DINOv2 (Oquab et al. 2023).
"""

import dataclasses
from typing import Literal, TypeAlias

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Num

from jaxformer.errors import UserError
from jaxformer.fields import setting
from jaxformer.layout import expand_like
from jaxformer.models.architecture import PaperArchitecture, StackSettings, check_divides
from jaxformer.models.assembly import Model, make_stack
from jaxformer.models.encoder import linear
from jaxformer.models.pictures import PatchArchitecture, Pictures, StackSizes
from jaxformer.nn.dropout import Dropout, RowIds, dropout_rows
from jaxformer.nn.feed_forward import Activation
from jaxformer.nn.grid_positions import GridBias, resize_grid
from jaxformer.nn.matmul import project
from jaxformer.nn.norm import LayerNorm
from jaxformer.nn.parameters import parameter
from jaxformer.nn.precision import ComputeDtype, activation_dtype

Pooling: TypeAlias = Literal["token", "mean", "patches", "token_and_patches"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ViTConfig(PatchArchitecture, PaperArchitecture):
    """The architecture of a :class:`ViT`; by default ViT-B/16. Other fields are as in GPT2Config.

    Attributes:
      architecture: Name of the published model, which selects the format of an export.
      pooling: Features that are classified: "token", of a learned class token; "mean", over all
        patches, without such a token; "patches", the mean over the patches beside a class token,
        normalized after the mean, as in BEiT; or "token_and_patches", the class token beside the
        mean over the patches, as in DINOv2.
      distilled: A second learned token after the class token, for distillation as in DeiT. No head
        reads its features.
      positions: "learned", one vector for each token; or as in BEiT a bias of attention for each
        offset on the grid of patches: "relative", of each layer, or "shared_relative", of all.
      position_size: Side of the square pictures that positions were learned for, in pixels, if it
        is another one: the vectors are then interpolated, as in DINOv2.
      layer_scale: Initial value of the learned factors that multiply the outputs of sub-layers, one
        for each feature; None for no factors.
      biases: Projections of attention that have biases: "all", all "except_key", or "output" only.
      gated: Gated feed-forward networks, as in :class:`~jaxformer.FeedForward`.
    """

    architecture: Literal["vit", "deit", "beit", "dinov2"] = "vit"
    pooling: Pooling = "token"
    distilled: bool = False
    d_model: int = setting(768, "size")
    d_ff: int = setting(3072, "size")
    num_heads: int = setting(12, "size")
    num_layers: int = setting(12, "size")
    positions: Literal["learned", "relative", "shared_relative"] = "learned"
    position_size: int | None = setting(None, "positive")
    layer_scale: float | None = setting(None, "positive")
    activation: Activation = "gelu"
    gated: bool = False
    biases: Literal["all", "except_key", "output"] = "all"
    dropout_rate: float = setting(0.0, "fraction", may_differ=True)
    attention_dropout_rate: float = setting(0.0, "fraction", may_differ=True)
    norm_epsilon: float = setting(1e-6, "positive")
    compute_dtype: ComputeDtype = setting("float32", may_differ=True, per_use=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        has_room = self.pooling == "token" and self.positions == "learned"
        if self.distilled and not has_room:
            raise UserError(
                "model.distilled needs model.pooling=token and model.positions=learned: got "
                f"{self.pooling} and {self.positions}"
            )
        if self.position_size is None:
            return

        check_divides(self, "patch_size", "position_size")
        if self.positions != "learned":
            raise UserError(
                "model.position_size needs model.positions=learned, which are interpolated: got "
                f"{self.positions}"
            )

    @property
    def num_tokens(self) -> int:
        rows, columns = self.grid
        num_patches = rows * columns
        return num_patches + self.num_other_tokens

    @property
    def has_class_token(self) -> bool:
        return self.pooling != "mean"

    @property
    def num_other_tokens(self) -> int:
        """Number of learned tokens before the patches."""
        return self.has_class_token + self.distilled

    @property
    def position_grid(self) -> tuple[int, int]:
        """Number of patches along each side that have learned positions."""
        if self.position_size is None:
            return self.grid
        side = self.position_size // self.patch_size
        return side, side

    @property
    def num_positions(self) -> int:
        """Number of learned positions, of the class token and of others, too."""
        rows, columns = self.position_grid
        return rows * columns + self.num_other_tokens

    @property
    def pooled_size(self) -> int:
        """Number of features that are classified."""
        return 2 * self.d_model if self.pooling == "token_and_patches" else self.d_model

    @property
    def feed_forward_matrices(self) -> int:
        return 3 if self.gated else 2

    @property
    def attention_grid(self) -> tuple[int, int]:
        return self.grid

    @property
    def stacks(self) -> tuple[StackSizes, ...]:
        return (StackSizes(self, sequences=1, length=self.num_tokens),)

    def stack_settings(self) -> StackSettings:
        return dataclasses.replace(
            super().stack_settings(),
            has_final_norm=self.pooling != "patches",
            layer_scale=self.layer_scale,
            gated=self.gated,
            biases=True if self.biases == "all" else self.biases,
        )


def patches(images: Num[Array, "B Y X C"], size: int) -> Num[Array, "B T P"]:
    """Cuts pictures into square patches, row by row, each with its values in the order Y, X, C."""
    batch, height, width, channels = images.shape
    rows = height // size
    columns = width // size
    grid = images.reshape(batch, rows, size, columns, size, channels)
    squares = grid.swapaxes(2, 3)  # [B, rows, columns, size, size, C]
    return squares.reshape(batch, -1, size * size * channels)


class ViT(Model):
    """An encoder of patches that predicts classes of pictures.

    Departs from the paper: patches take the place of tokens, and there is no decoder.
    """

    config: ViTConfig

    def setup(self) -> None:
        self._check_config()
        c = self.config
        normal = nn.initializers.normal(0.02)

        patch_values = c.patch_size**2 * c.channels
        axes = ("patch", "d_model")
        self.patches = self._make_linear("patches", c.d_model, axes, inputs=patch_values)
        if c.positions == "learned":
            self.positions = parameter(self, "positions", normal, (c.num_positions, c.d_model))
        if c.has_class_token:
            self.class_token = parameter(self, "class_token", normal, (c.d_model,))
        if c.distilled:
            self.distillation_token = parameter(self, "distillation_token", normal, (c.d_model,))
        if c.num_classes:
            self.classes = self._make_linear("classes", c.num_classes, inputs=c.pooled_size)

        self.dropout = Dropout(c.dropout_rate)
        if c.pooling == "patches":
            self.norm = LayerNorm(c.norm_epsilon)
        self.encoder = make_stack(
            c.stack_settings(),
            make_bias=None if c.positions == "learned" else self._make_bias,
            has_own_biases=c.positions == "relative",
            remat=self.remat,
        )

    @nn.nowrap
    def _make_bias(self) -> GridBias:
        c = self.config
        return GridBias(c.num_heads, c.grid, c.has_class_token)

    def __call__(
        self,
        images: Pictures,
        deterministic: bool = True,
        *,
        row_ids: RowIds = None,
    ) -> Float[Array, "B K"]:
        """Returns logits of the classes.

        Pixels are as :meth:`ViTConfig.scale_pixels` returns them; the rest is as in Encoder.
        """
        features = self.features(images, deterministic, row_ids=row_ids)
        pooled = self.pool(features)  # [B, D], or [B, 2 D] of the token and the patches

        if not self.config.num_classes:
            return pooled
        return linear(pooled, *self.classes)

    def pool(self, features: Float[Array, "B T D"]) -> Float[Array, "B _"]:
        """Returns the features of whole pictures; see ``pooling`` of :class:`ViTConfig`."""
        pooling = self.config.pooling
        if pooling == "token":
            return features[:, 0]
        if pooling == "mean":
            return features.mean(axis=1)

        of_patches = features[:, 1:].mean(axis=1)
        if pooling == "patches":
            return self.norm(of_patches)
        return jnp.concatenate([features[:, 0], of_patches], axis=-1)

    def features(
        self,
        images: Pictures,
        deterministic: bool = True,
        *,
        row_ids: RowIds = None,
    ) -> Float[Array, "B T D"]:
        """Returns the output of the encoder: of the class token, if any, and of each patch.

        In a distilled model, the second token is the token of distillation.
        """
        c = self.config
        c.check_pictures("ViT", images)

        x = project(patches(images, c.patch_size), *self.patches, c.compute_dtype)  # [B, T, D]
        if c.distilled:
            distillation_token = jnp.zeros_like(x[:, :1]) + self.distillation_token
            x = jnp.concatenate([distillation_token, x], axis=1)
        if c.has_class_token:
            class_token = jnp.zeros_like(x[:, :1]) + self.class_token  # [B, 1, D]
            x = jnp.concatenate([class_token, x], axis=1)

        dtype = activation_dtype(c.compute_dtype, x)
        if c.positions == "learned":
            x = x + expand_like(self._positions_of_grid(), x)
        x = x.astype(dtype)

        dropout = dropout_rows(images.shape[0], deterministic, row_ids)
        x = self.dropout(x, dropout)
        return self.encoder(x, dropout=dropout)

    def _positions_of_grid(self) -> Float[Array, "T D"]:
        """Returns the positions of all tokens, interpolated for pictures of another size."""
        c = self.config
        if c.position_grid == c.grid:
            return self.positions

        first = c.num_other_tokens
        resized = resize_grid(self.positions[first:], c.position_grid, c.grid)
        return jnp.concatenate([self.positions[:first], resized])
