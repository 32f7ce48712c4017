"""The base of encoders of pictures and of texts, whose outputs share one space."""

import dataclasses
import math
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from jaxformer.fields import setting
from jaxformer.models.architecture import EmbeddingSettings, PaperArchitecture, check_divides
from jaxformer.models.assembly import Model
from jaxformer.models.pictures import Pictures, PixelArchitecture
from jaxformer.nn.dropout import RowIds
from jaxformer.nn.feed_forward import Activation
from jaxformer.nn.matmul import matmul_nt
from jaxformer.nn.parameters import parameter
from jaxformer.nn.precision import ComputeDtype, at_least_float32

_FIRST_SCALE = 1 / 0.07  # of the cosines, before training


@dataclasses.dataclass(frozen=True, kw_only=True)
class DualEncoderArchitecture(PixelArchitecture, PaperArchitecture):
    """The base of the sections of dual encoders.

    Attributes:
      d_model: Width of the encoder of texts; also ``d_ff``, ``num_heads``, ``num_layers`` and
        ``max_length``.
      patch_size: Side of a patch in pixels.
      vision_d_model: Width of the encoder of pictures; also ``vision_d_ff``, ``vision_num_heads``
        and ``vision_num_layers``.
      embedding_dim: Size of the embeddings of pictures and texts.
      reads_causally: Tokens of texts see earlier ones only. Not itself a field.
    """

    vocab_size: int = setting(49_408, "size", may_differ=True)
    d_model: int = setting(512, "size")
    d_ff: int = setting(2048, "size")
    num_heads: int = setting(8, "size")
    num_layers: int = setting(12, "size")
    max_length: int = setting(77, "size", may_differ=True)
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

    reads_causally: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_divides(self, "vision_num_heads", "vision_d_model")
        for side in ("height", "width"):
            check_divides(self, "patch_size", side)

    def vision_sizes(self) -> Any:
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


def num_vision_tokens(image_shape: tuple[int, int, int], patch_size: int) -> int:
    """Returns the number of patches of a picture, and its class token."""
    height, width, _ = image_shape
    return (height // patch_size) * (width // patch_size) + 1


class Embeddings(NamedTuple):
    """Embeddings of pictures and of texts, not normalized."""

    images: Float[Array, "I E"]
    texts: Float[Array, "N E"]


class DualEncoder(Model):
    """Two encoders, trained so that the embeddings of a picture and its text are similar.

    ``__call__`` compares all pictures with all texts; :meth:`image_embeddings` and
    :meth:`text_embeddings`, which a subclass has, embed one of the two. In token ids, 0 is padding.
    A subclass also assigns ``log_scale``.
    """

    config: DualEncoderArchitecture

    @nn.nowrap
    def _make_output(self, name: str, inputs: int) -> Array:
        """Creates the projection of an encoder to the space of embeddings."""
        normal = nn.initializers.normal(inputs**-0.5)
        return parameter(self, name, normal, (inputs, self.config.embedding_dim))

    @nn.nowrap
    def _make_log_scale(self) -> Array:
        first_scale = nn.initializers.constant(math.log(_FIRST_SCALE))
        return parameter(self, "log_scale", first_scale, ())

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
          images: Pixels as ``config.scale_pixels`` returns them.
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
        raise NotImplementedError

    def text_embeddings(
        self,
        tokens: Int[Array, "B T"],
        deterministic: bool = True,
        *,
        row_ids: RowIds = None,
    ) -> Float[Array, "B E"]:
        """Returns the embeddings of texts, not normalized."""
        raise NotImplementedError


def unit_vectors(x: Float[Array, "*rows E"]) -> Float[Array, "*rows E"]:
    """Returns vectors of length 1."""
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


def project_pooled(x: Float[Array, "B D"], matrix: Float[Array, "D E"]) -> Float[Array, "B E"]:
    """Returns embeddings, at least float32, of the features of whole pictures or texts."""
    return x.astype(at_least_float32(x, matrix)) @ matrix
