"""ConViT (d'Ascoli et al. 2021): a Vision Transformer that begins as a convolutional network."""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, PyTree

from jaxformer.errors import UserError
from jaxformer.fields import setting
from jaxformer.layout import expand_like
from jaxformer.models.architecture import PaperArchitecture, StackSettings
from jaxformer.models.assembly import Model, make_stack
from jaxformer.models.encoder import linear
from jaxformer.models.pictures import PatchArchitecture, Pictures, StackSizes
from jaxformer.models.vit import ViTConfig, patches
from jaxformer.nn.dropout import Dropout, RowIds, dropout_rows
from jaxformer.nn.feed_forward import Activation
from jaxformer.nn.gated_positions import GatedPositionalAttention, neighbors
from jaxformer.nn.matmul import project
from jaxformer.nn.parameters import parameter
from jaxformer.nn.precision import ComputeDtype, activation_dtype


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConViTConfig(PatchArchitecture, PaperArchitecture):
    """The architecture of a :class:`ConViT`; by default ConViT-Ti.

    Fields that are not listed are as in :class:`~jaxformer.ViTConfig`.

    Attributes:
      num_heads: Number of heads, a square: each begins at one place of a kernel.
      num_local_layers: Number of the first layers, whose attention is gated.
      locality: Initial sharpness of the attention to the places of the kernel.
    """

    architecture: Literal["convit"] = "convit"
    d_model: int = setting(192, "size")
    d_ff: int = setting(768, "size")
    num_heads: int = setting(4, "size")
    num_layers: int = setting(12, "size")
    num_local_layers: int = setting(10, "positive")
    locality: float = setting(1.0, "positive", may_differ=True)
    activation: Activation = "gelu_exact"
    dropout_rate: float = setting(0.0, "fraction", may_differ=True)
    attention_dropout_rate: float = setting(0.0, "fraction", may_differ=True)
    norm_epsilon: float = setting(1e-6, "positive")
    compute_dtype: ComputeDtype = setting("float32", may_differ=True, per_use=True)

    def __post_init__(self) -> None:
        super().__post_init__()

        neighbors(self.num_heads)
        if self.num_local_layers >= self.num_layers:
            raise UserError(
                "model.num_local_layers must be less than model.num_layers, since the class token "
                f"joins after them: got {self.num_local_layers} of {self.num_layers}"
            )

    @property
    def num_patches(self) -> int:
        rows, columns = self.grid
        return rows * columns

    @property
    def stacks(self) -> tuple[StackSizes, ...]:
        sizes = [
            (self.num_local_layers, self.num_patches),
            (self.num_layers - self.num_local_layers, self.num_patches + 1),
        ]
        found = []
        for num_layers, length in sizes:
            layers = ViTConfig(
                d_model=self.d_model,
                d_ff=self.d_ff,
                num_heads=self.num_heads,
                num_layers=num_layers,
            )
            found.append(StackSizes(layers, sequences=1, length=length))
        return tuple(found)

    def stack_settings(self) -> StackSettings:
        """Returns the settings of the last layers."""
        return dataclasses.replace(
            super().stack_settings(),
            num_layers=self.num_layers - self.num_local_layers,
            biases="output",
        )

    def local_settings(self) -> StackSettings:
        """Returns the settings of the first layers."""
        return dataclasses.replace(
            self.stack_settings(),
            num_layers=self.num_local_layers,
            has_final_norm=False,
        )


class ConViT(Model):
    """An encoder of patches whose first layers begin as convolutions.

    Departs from the paper: there is no decoder, and attention in the first layers is also by the
    offsets of patches.
    """

    config: ConViTConfig

    def setup(self) -> None:
        self._check_config()
        c = self.config
        normal = nn.initializers.normal(0.02)
        axes = ("patch", "d_model")
        values = c.patch_size**2 * c.channels
        self.patches = self._make_linear("patches", c.d_model, axes, inputs=values)
        self.positions = parameter(self, "positions", normal, (c.num_patches, c.d_model))
        self.class_token = parameter(self, "class_token", normal, (c.d_model,))
        if c.num_classes:
            self.classes = self._make_linear("classes", c.num_classes)

        self.dropout = Dropout(c.dropout_rate)
        attention = GatedPositionalAttention(
            num_heads=c.num_heads,
            use_bias="output",
            dropout_rate=c.attention_dropout_rate,
            compute_dtype=c.compute_dtype,
            grid=c.grid,
            locality=c.locality,
        )
        self.local = make_stack(c.local_settings(), self_attention=attention, remat=self.remat)
        self.encoder = make_stack(c.stack_settings(), remat=self.remat)

    def __call__(
        self,
        images: Pictures,
        deterministic: bool = True,
        *,
        row_ids: RowIds = None,
    ) -> Float[Array, "B K"]:
        """Returns logits of the classes; arguments as for :class:`~jaxformer.ViT`."""
        features = self.features(images, deterministic, row_ids=row_ids)
        pooled = features[:, 0]
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
        """Returns the output of the last layer: of the class token, and of each patch."""
        c = self.config
        c.check_pictures("ConViT", images)

        x = project(patches(images, c.patch_size), *self.patches, c.compute_dtype)  # [B, T, D]
        x = x + expand_like(self.positions, x)
        x = x.astype(activation_dtype(c.compute_dtype, x))
        dropout = dropout_rows(images.shape[0], deterministic, row_ids)
        x = self.local(self.dropout(x, dropout), dropout=dropout)

        token = (jnp.zeros_like(x[:, :1]) + self.class_token).astype(x.dtype)  # [B, 1, D]
        return self.encoder(jnp.concatenate([token, x], axis=1), dropout=dropout)


def gates_of(params: PyTree) -> Float[Array, "L H"]:
    """Returns how much each head of each of the first layers attends by offsets, from 0 to 1."""
    return jax.nn.sigmoid(params["local"]["layers"]["self_attention"]["gate"])
