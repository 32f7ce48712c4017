"""A Vision Transformer and a BERT whose outputs share one space (Zhai et al. 2022, LiT)."""

import dataclasses
from typing import Any, Literal

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxformer.fields import setting
from jaxformer.models.bert import Bert, BertConfig
from jaxformer.models.clip import VisionTower
from jaxformer.models.dual_encoder import (
    DualEncoder,
    DualEncoderArchitecture,
    project_pooled,
)
from jaxformer.models.pictures import Pictures, PixelArchitecture
from jaxformer.models.vit import ViT, ViTConfig
from jaxformer.nn.dropout import RowIds, dropout_rows
from jaxformer.nn.feed_forward import Activation
from jaxformer.nn.matmul import project
from jaxformer.nn.norm import LayerNorm
from jaxformer.nn.precision import ComputeDtype


@dataclasses.dataclass(frozen=True, kw_only=True)
class VisionTextDualEncoderConfig(DualEncoderArchitecture):
    """The architecture of :class:`VisionTextDualEncoder`; by default a ViT-B/16 and BERT-base.

    Fields that are not listed are as in :class:`~jaxformer.CLIPConfig`. Those that do not begin
    with ``vision_`` are of the encoder of texts, a :class:`~jaxformer.Bert`.

    Attributes:
      num_token_types: As in :class:`~jaxformer.BertConfig`; all tokens have the first type.
      vision: Encoder of pictures: "vit", a :class:`~jaxformer.ViT` with a pooler, or "clip", the
        encoder of a :class:`~jaxformer.CLIP`.
      vision_activation: Activation of the encoder of pictures; also ``vision_biases``,
        ``vision_norm_epsilon``, ``vision_dropout_rate`` and ``vision_attention_dropout_rate``, as
        in :class:`~jaxformer.ViTConfig`.
    """

    architecture: Literal["vision_text_dual_encoder"] = "vision_text_dual_encoder"
    vocab_size: int = setting(30_522, "size", may_differ=True)
    d_model: int = setting(768, "size")
    d_ff: int = setting(3072, "size")
    num_heads: int = setting(12, "size")
    max_length: int = setting(512, "size", may_differ=True)
    patch_size: int = setting(16, "positive")
    activation: Activation = "gelu_exact"
    dropout_rate: float = setting(0.1, "fraction", may_differ=True)
    attention_dropout_rate: float = setting(0.1, "fraction", may_differ=True)
    norm_epsilon: float = setting(1e-12, "positive")
    compute_dtype: ComputeDtype = setting("float32", may_differ=True, per_use=True)
    num_token_types: int = setting(2, "positive")
    vision: Literal["vit", "clip"] = "vit"
    vision_activation: Activation = "gelu_exact"
    vision_biases: Literal["all", "output"] = "all"
    vision_norm_epsilon: float = setting(1e-12, "positive")
    vision_dropout_rate: float = setting(0.0, "fraction", may_differ=True)
    vision_attention_dropout_rate: float = setting(0.0, "fraction", may_differ=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.vision_sizes()
        self.text_section()

    def vision_sizes(self) -> ViTConfig:
        """Returns the architecture of the encoder of pictures."""
        pixels = {name: getattr(self, name) for name in _PIXEL_FIELDS}
        return ViTConfig(
            **pixels,
            num_classes=0,
            pooling="token",
            patch_size=self.patch_size,
            d_model=self.vision_d_model,
            d_ff=self.vision_d_ff,
            num_heads=self.vision_num_heads,
            num_layers=self.vision_num_layers,
            activation=self.vision_activation,
            biases=self.vision_biases,
            norm_epsilon=self.vision_norm_epsilon,
            dropout_rate=self.vision_dropout_rate,
            attention_dropout_rate=self.vision_attention_dropout_rate,
            compute_dtype=self.compute_dtype,
        )

    def text_section(self) -> BertConfig:
        """Returns the architecture of the encoder of texts."""
        return BertConfig(
            vocab_size=self.vocab_size,
            d_model=self.d_model,
            d_ff=self.d_ff,
            num_heads=self.num_heads,
            num_layers=self.num_layers,
            max_length=self.max_length,
            num_token_types=self.num_token_types,
            num_classes=0,
            heads="pooler",
            activation=self.activation,
            norm_epsilon=self.norm_epsilon,
            dropout_rate=self.dropout_rate,
            attention_dropout_rate=self.attention_dropout_rate,
            compute_dtype=self.compute_dtype,
        )


_PIXEL_FIELDS = [field.name for field in dataclasses.fields(PixelArchitecture)]


class VisionTextDualEncoder(DualEncoder):
    """A Vision Transformer, or CLIP's, beside a BERT; see :class:`DualEncoder`.

    A text is [CLS] text [SEP], as for a :class:`~jaxformer.Bert`, whose pooler reads [CLS].

    Departs from the paper: there is no decoder, and patches take the place of tokens in the encoder
    of pictures.
    """

    config: VisionTextDualEncoderConfig

    def setup(self) -> None:
        self._check_config()
        c = self.config
        vision = c.vision_sizes()
        width = c.vision_d_model
        if c.vision == "vit":
            self.vision = ViT(vision, self.remat)
            self.vision_pooler = self._make_linear(
                "vision_pooler",
                width,
                axes=("d_model", None),
                inputs=width,
            )
        else:
            self.vision = VisionTower(
                vision.stack_settings(),
                width,
                c.image_shape,
                c.patch_size,
                remat=self.remat,
            )
            self.vision_norm = LayerNorm(c.vision_norm_epsilon)
        self.vision_projection = self._make_output("vision_projection", width)

        self.text = Bert(c.text_section(), self.remat)
        self.text_projection = self._make_output("text_projection", c.d_model)
        self.log_scale = self._make_log_scale()

    def image_embeddings(
        self,
        images: Pictures,
        deterministic: bool = True,
        *,
        row_ids: RowIds = None,
    ) -> Float[Array, "B E"]:
        """Returns the embeddings of pictures, not normalized, computed from the class token."""
        c = self.config
        encoder: Any = self.vision
        if c.vision == "vit":
            features = encoder.features(images, deterministic, row_ids=row_ids)
            pooled = jnp.tanh(project(features[:, 0], *self.vision_pooler, c.compute_dtype))
        else:
            dropout = dropout_rows(images.shape[0], deterministic, row_ids)
            features = encoder(images, dropout=dropout)
            pooled = self.vision_norm(features[:, 0])
        return project_pooled(pooled, self.vision_projection)

    def text_embeddings(
        self,
        tokens: Int[Array, "B T"],
        deterministic: bool = True,
        *,
        row_ids: RowIds = None,
    ) -> Float[Array, "B E"]:
        """Returns the embeddings of texts, not normalized."""
        features = self.text.features(tokens, deterministic, row_ids=row_ids)
        pooled = self.text.pool(features, tokens)
        return project_pooled(pooled, self.text_projection)
