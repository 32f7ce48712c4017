"""A small residual convolutional network, to compare models of pictures with."""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from jaxformer.errors import UserError
from jaxformer.fields import setting
from jaxformer.layout import expand_like
from jaxformer.models.assembly import Model
from jaxformer.models.encoder import linear
from jaxformer.models.pictures import PictureArchitecture, Pictures
from jaxformer.nn.dropout import Dropout, RowIds, dropout_rows
from jaxformer.nn.feed_forward import Activation, activate
from jaxformer.nn.norm import LayerNorm
from jaxformer.nn.parameters import parameter

_KERNEL = (3, 3)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CNNConfig(PictureArchitecture):
    """The architecture of a :class:`CNN`.

    Attributes:
      widths: Numbers of channels, one for each stage, separated by spaces. Between two stages,
        height and width are halved.
    """

    architecture: Literal["cnn"] = "cnn"
    widths: str = "32 64 128"
    activation: Activation = "relu"
    dropout_rate: float = setting(0.0, "fraction", may_differ=True)
    norm_epsilon: float = setting(1e-6, "positive")
    compute_dtype: Literal["float32"] = "float32"

    def __post_init__(self) -> None:
        super().__post_init__()
        widths = self.widths.split()
        if not widths or not all(width.isdecimal() and int(width) for width in widths):
            raise UserError(
                "model.widths must be numbers of channels, one for each stage, separated by "
                f"spaces: got {self.widths!r:.80}"
            )

        halvings = 2 ** (len(widths) - 1)
        if self.height % halvings or self.width % halvings:
            raise UserError(
                f"model.widths={self.widths!r} halve the sides {len(widths) - 1} times: expected "
                f"model.height and model.width that {halvings} divides, got {self.height} and "
                f"{self.width}"
            )

    @property
    def stage_widths(self) -> tuple[int, ...]:
        return tuple(map(int, self.widths.split()))

    @property
    def d_model(self) -> int:
        """Number of features that are classified."""
        return self.stage_widths[-1]


class CNN(Model):
    """A stage of a residual block for each width, and the mean of the last one.

    Departs from the paper: convolutions take the place of attention.
    """

    config: CNNConfig

    @nn.compact
    def __call__(
        self,
        images: Pictures,
        deterministic: bool = True,
        *,
        row_ids: RowIds = None,
    ) -> Float[Array, "B K"]:
        """Returns logits of the classes; arguments as for :class:`~jaxformer.ViT`."""
        self._check_config()
        c = self.config
        c.check_pictures("CNN", images)

        x = images
        for number, width in enumerate(c.stage_widths):
            if number:
                x = _halve(x)
            x = self._convolve(f"stage{number}_widen", x, width)
            inner = self._activate(f"stage{number}_norm", x)
            inner = self._convolve(f"stage{number}_first", inner, width)
            inner = self._activate(f"stage{number}_second_norm", inner)
            x = x + self._convolve(f"stage{number}_second", inner, width)

        pooled = self._activate("norm", x).mean(axis=(1, 2))  # [B, D]
        dropout = dropout_rows(images.shape[0], deterministic, row_ids)
        pooled = Dropout(c.dropout_rate)(pooled[:, None], dropout)[:, 0]
        if not c.num_classes:
            return pooled
        return linear(pooled, *self._make_linear("classes", c.num_classes))

    def _activate(self, name: str, x: Float[Array, "B Y X C"]) -> Float[Array, "B Y X C"]:
        norm = LayerNorm(self.config.norm_epsilon, name=name)
        return activate(self.config.activation, norm(x))

    def _convolve(
        self,
        name: str,
        x: Float[Array, "B Y X C"],
        width: int,
    ) -> Float[Array, "B Y X D"]:
        """Returns a convolution that keeps height and width."""
        he = nn.initializers.he_normal(in_axis=(0, 1, 2), out_axis=3)
        kernel = parameter(self, name, he, (*_KERNEL, x.shape[-1], width))
        bias = parameter(self, f"{name}_bias", nn.initializers.zeros, (width,))
        convolved = jax.lax.conv_general_dilated(
            x,
            kernel,
            window_strides=(1, 1),
            padding="SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        return convolved + expand_like(bias, convolved)


def _halve(x: Float[Array, "B Y X C"]) -> Float[Array, "B V U C"]:
    """Returns the largest of each square of four neighbors."""
    batch, height, width, channels = x.shape
    squares = x.reshape(batch, height // 2, 2, width // 2, 2, channels)
    return jnp.max(squares, axis=(2, 4))
