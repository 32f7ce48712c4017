"""An encoder of pictures and a decoder of texts, such as TrOCR (Li et al. 2021)."""

import dataclasses
from typing import Literal

from flax import linen as nn
from jaxtyping import Array, UInt8

from jaxformer.fields import setting
from jaxformer.models.array_encoder_decoder import (
    ArrayDecoderArchitecture,
    ArrayEncoderDecoder,
    Encoded,
)
from jaxformer.models.pictures import Pictures, PixelArchitecture
from jaxformer.models.vit import ViT, ViTConfig
from jaxformer.nn.dropout import RowIds
from jaxformer.nn.feed_forward import Activation
from jaxformer.nn.stack import StackCache


@dataclasses.dataclass(frozen=True, kw_only=True)
class VisionEncoderDecoderConfig(PixelArchitecture, ArrayDecoderArchitecture):
    """The architecture of :class:`VisionEncoderDecoder`; by default a ViT-B/16 and a GPT-2.

    Attributes:
      patch_size: Side of a patch in pixels.
      encoder_d_model: Width of the encoder, a :class:`~jaxformer.ViT`, whose other fields also
        begin with ``encoder_``. With ``encoder_pooling="patches"``, it has no norm after its
        layers, as in BEiT.
    """

    architecture: Literal["vision_encoder_decoder"] = "vision_encoder_decoder"
    patch_size: int = setting(16, "positive")
    encoder_d_ff: int = setting(3072, "size")
    encoder_num_heads: int = setting(12, "size")
    encoder_num_layers: int = setting(12, "size")
    encoder_activation: Activation = "gelu_exact"
    encoder_pooling: Literal["token", "patches"] = "token"
    encoder_distilled: bool = False
    encoder_positions: Literal["learned", "relative", "shared_relative"] = "learned"
    encoder_layer_scale: float | None = setting(None, "positive")
    encoder_biases: Literal["all", "except_key", "output"] = "all"
    encoder_norm_epsilon: float = setting(1e-12, "positive")
    encoder_dropout_rate: float = setting(0.0, "fraction", may_differ=True)
    encoder_attention_dropout_rate: float = setting(0.0, "fraction", may_differ=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.encoder_section()

    def encoder_section(self) -> ViTConfig:
        """Returns the architecture of the encoder."""
        pixels = {field.name: getattr(self, field.name) for field in _PIXEL_FIELDS}
        return ViTConfig(
            **pixels,
            num_classes=0,
            pooling=self.encoder_pooling,
            distilled=self.encoder_distilled,
            positions=self.encoder_positions,
            layer_scale=self.encoder_layer_scale,
            patch_size=self.patch_size,
            d_model=self.encoder_d_model,
            d_ff=self.encoder_d_ff,
            num_heads=self.encoder_num_heads,
            num_layers=self.encoder_num_layers,
            activation=self.encoder_activation,
            biases=self.encoder_biases,
            norm_epsilon=self.encoder_norm_epsilon,
            dropout_rate=self.encoder_dropout_rate,
            attention_dropout_rate=self.encoder_attention_dropout_rate,
            compute_dtype=self.compute_dtype,
        )


_PIXEL_FIELDS = dataclasses.fields(PixelArchitecture)


class VisionEncoderDecoder(ArrayEncoderDecoder):
    """A Vision Transformer, and a decoder that writes a text about its picture.

    ``__call__`` takes pictures as :meth:`VisionEncoderDecoderConfig.scale_pixels` returns them.
    """

    config: VisionEncoderDecoderConfig

    @nn.nowrap
    def _make_encoder(self) -> ViT:
        return ViT(self.config.encoder_section(), self.remat)

    def encode(
        self,
        images: Pictures,
        *,
        deterministic: bool = True,
        row_ids: RowIds = None,
    ) -> Encoded:
        """Returns the features of the class token, and others of their kind, and of each patch."""
        features = self.encoder.features(images, deterministic, row_ids=row_ids)
        return Encoded(self._project(features))

    def start(
        self,
        images: UInt8[Array, "B Y X C"],
        *,
        num_beams: int = 1,
        capacity: int,
    ) -> StackCache:
        """Encodes pictures as they are, from 0 to 255, and returns an empty cache."""
        pixels = self.config.scale_pixels(images)
        return super().start(pixels, num_beams=num_beams, capacity=capacity)
