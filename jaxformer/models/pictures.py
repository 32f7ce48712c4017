"""The base of all sections ``model`` of models of pictures, and what these models take."""

import dataclasses
from typing import Literal, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Num, UInt8

from jaxformer.data.picture_files import PictureForm
from jaxformer.errors import UserError
from jaxformer.fields import setting
from jaxformer.models.architecture import Architecture, check_divides

Pictures: TypeAlias = Float[Array, "B Y X C"]
# A number for all channels, or one for each.
PerChannel: TypeAlias = float | Float[np.ndarray, " C"]


class StackSizes(NamedTuple):
    """A stack of Transformer layers, and the sequences that it reads of one picture."""

    sizes: Architecture
    sequences: int
    length: int  # tokens of a sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class PixelArchitecture(Architecture):
    """The base of the sections of models that read pictures.

    Attributes:
      height: Height of the pictures in pixels; also ``width``, and ``channels`` of each pixel.
      pixel_mean: Mean of the pixels, from 0 to 1, that is subtracted from them: one number, or one
        for each channel, separated by spaces. With the default, and the default of ``pixel_std``, a
        model takes values from -1 to 1.
      pixel_std: Standard deviation that the difference is divided by, in the same form.
      resampling: Interpolation with which pictures of another size are resized.
      shortest_side: Pixels that the shorter side is resized to, before the center is cut out; None
        to resize both sides, whatever their ratio.
    """

    height: int = setting(224, "positive")
    width: int = setting(224, "positive")
    channels: int = setting(3, "positive")
    pixel_mean: str = "0.5"
    pixel_std: str = "0.5"
    resampling: Literal["bilinear", "bicubic"] = setting("bilinear", may_differ=True)
    shortest_side: int | None = setting(None, "positive", may_differ=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._per_channel("pixel_mean")
        if not np.all(self._per_channel("pixel_std") > 0):
            raise UserError(f"model.pixel_std must be greater than 0: got {self.pixel_std}")

        shortest = self.shortest_side
        if shortest is not None and shortest < max(self.height, self.width):
            raise UserError(
                f"model.shortest_side must be at least model.height={self.height} and model.width="
                f"{self.width}, which are cut out: got {shortest}"
            )

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return self.height, self.width, self.channels

    @property
    def form(self) -> PictureForm:
        """The form that files of pictures are converted to."""
        return PictureForm(*self.image_shape, self.resampling, self.shortest_side)

    def scale_pixels(self, images: Num[ArrayLike, "B Y X C"]) -> Pictures:
        """Returns pixels from 0 to 255 as the model takes them."""
        mean = self._per_channel("pixel_mean")
        std = self._per_channel("pixel_std")
        return jnp.asarray(images, jnp.float32) / (255 * std) - mean / std

    def as_pictures(self, images: ArrayLike) -> UInt8[np.ndarray, "N Y X C"]:
        """Returns pictures as an array; refuses another dtype or size, or none."""
        pictures = np.asarray(images)
        has_dtype = pictures.dtype == np.uint8
        has_shape = pictures.shape[1:] == self.image_shape
        if not (has_dtype and has_shape and len(pictures)):
            sizes = ", ".join(map(str, self.image_shape))
            raise UserError(
                f"expected pictures, uint8 [N, {sizes}], got {pictures.dtype} "
                f"{list(pictures.shape)}"
            )
        return pictures

    def check_pictures(self, owner: str, images: Pictures) -> None:
        """Refuses pictures of another size, given the name of the model's class."""
        if images.shape[1:] != self.image_shape:
            sizes = ", ".join(map(str, self.image_shape))
            raise UserError(f"{owner}: expected pictures [batch, {sizes}], got {images.shape}")

    def check_split(self, name: str, images: UInt8[np.ndarray, "N Y X C"]) -> None:
        """Refuses pictures of data that have another size, given the name of their split."""
        shape = images.shape[1:]
        if shape != self.image_shape:
            raise UserError(
                f"model.height, model.width and model.channels must be {shape}, as in the "
                f"pictures of {name}: got {self.image_shape}"
            )

    def _per_channel(self, name: str) -> PerChannel:
        """Returns the numbers of a field."""
        text = getattr(self, name)
        try:
            numbers = [float(word) for word in text.split()]
        except ValueError:
            numbers = []

        is_complete = len(numbers) in (1, self.channels)
        if not is_complete or not np.isfinite(numbers).all():
            raise UserError(
                f"model.{name} must be one number, or one for each of model.channels="
                f"{self.channels}, separated by spaces: got {text!r:.80}"
            )

        if len(numbers) == 1:
            return numbers[0]
        return np.array(numbers, np.float32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PictureArchitecture(PixelArchitecture):
    """The base of the sections of models of pictures.

    Attributes:
      num_classes: Number of classes, or size of an embedding; 0 returns pooled features.
    """

    num_classes: int = setting(1000, "any", may_differ=True)

    @property
    def attention_grid(self) -> tuple[int, int] | None:
        """Rows and columns of the patches that attend to each other in all layers, if they do."""
        return None

    @property
    def stacks(self) -> tuple[StackSizes, ...]:
        """The stacks of Transformer layers, to count operations."""
        return ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class PatchArchitecture(PictureArchitecture):
    """The base of the sections of models whose tokens are patches.

    Attributes:
      patch_size: Side of a patch in pixels.
    """

    patch_size: int = setting(16, "positive")

    def __post_init__(self) -> None:
        super().__post_init__()
        for side in ("height", "width"):
            check_divides(self, "patch_size", side)

    @property
    def grid(self) -> tuple[int, int]:
        """Number of patches along the height and along the width."""
        return self.height // self.patch_size, self.width // self.patch_size
