"""The Vision Transformer (Dosovitskiy et al. 2021): the encoder of the paper on patches."""

import dataclasses
from typing import Literal

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from jaxformer.fields import setting
from jaxformer.layout import expand_like
from jaxformer.models.architecture import PaperArchitecture, check_divides
from jaxformer.models.assembly import Model, make_stack
from jaxformer.models.encoder import linear
from jaxformer.models.pictures import PictureArchitecture, Pictures, StackSizes
from jaxformer.nn.dropout import Dropout, RowIds, dropout_rows
from jaxformer.nn.feed_forward import Activation
from jaxformer.nn.matmul import project
from jaxformer.nn.parameters import parameter
from jaxformer.nn.precision import ComputeDtype, activation_dtype


@dataclasses.dataclass(frozen=True, kw_only=True)
class ViTConfig(PictureArchitecture, PaperArchitecture):
    """The architecture of a :class:`ViT`; by default ViT-B/16. Other fields are as in GPT2Config.

    Attributes:
      patch_size: Side of a patch in pixels.
      pooling: Features that are classified: "token", of a learned class token, or "mean".
    """

    architecture: Literal["vit"] = "vit"
    patch_size: int = setting(16, "positive")
    pooling: Literal["token", "mean"] = "token"
    d_model: int = setting(768, "size")
    d_ff: int = setting(3072, "size")
    num_heads: int = setting(12, "size")
    num_layers: int = setting(12, "size")
    activation: Activation = "gelu"
    dropout_rate: float = setting(0.0, "fraction", may_differ=True)
    attention_dropout_rate: float = setting(0.0, "fraction", may_differ=True)
    norm_epsilon: float = setting(1e-6, "positive")
    compute_dtype: ComputeDtype = setting("float32", may_differ=True, per_use=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        for side in ("height", "width"):
            check_divides(self, "patch_size", side)

    @property
    def grid(self) -> tuple[int, int]:
        """Number of patches along the height and along the width."""
        return self.height // self.patch_size, self.width // self.patch_size

    @property
    def num_tokens(self) -> int:
        rows, columns = self.grid
        num_patches = rows * columns
        return num_patches + 1 if self.pooling == "token" else num_patches

    @property
    def attention_grid(self) -> tuple[int, int]:
        return self.grid

    @property
    def stacks(self) -> tuple[StackSizes, ...]:
        return (StackSizes(self, sequences=1, length=self.num_tokens),)


def patches(images: Pictures, size: int) -> Float[Array, "B T P"]:
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
        self.positions = parameter(self, "positions", normal, (c.num_tokens, c.d_model))
        if c.pooling == "token":
            self.class_token = parameter(self, "class_token", normal, (c.d_model,))
        if c.num_classes:
            self.classes = self._make_linear("classes", c.num_classes)

        self.dropout = Dropout(c.dropout_rate)
        self.encoder = make_stack(c.stack_settings(), remat=self.remat)

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
        takes_token = self.config.pooling == "token"
        pooled = features[:, 0] if takes_token else features.mean(axis=1)  # [B, D]

        if not self.config.num_classes:
            return pooled
        return linear(pooled, *self.classes)

    def features(
        self,
        images: Pictures,
        deterministic: bool = True,
        *,
        row_ids: RowIds = None,
    ) -> Float[Array, "B T D"]:
        """Returns the output of the encoder: of the class token, if any, and of each patch."""
        c = self.config
        c.check_pictures("ViT", images)

        x = project(patches(images, c.patch_size), *self.patches, c.compute_dtype)  # [B, T, D]
        if c.pooling == "token":
            class_token = jnp.zeros_like(x[:, :1]) + self.class_token  # [B, 1, D]
            x = jnp.concatenate([class_token, x], axis=1)

        dtype = activation_dtype(c.compute_dtype, x)
        x = (x + expand_like(self.positions, x)).astype(dtype)

        dropout = dropout_rows(images.shape[0], deterministic, row_ids)
        x = self.dropout(x, dropout)
        return self.encoder(x, dropout=dropout)
