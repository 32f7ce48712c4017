"""Encoders of pictures and of texts, whose outputs are compared."""

import jax
import jax.numpy as jnp

from jaxformer.data.image_texts import ImageTextConfig
from jaxformer.kinds.kind import TOKENS, Kind
from jaxformer.models.clip import CLIP
from jaxformer.models.vision_text import VisionTextDualEncoder

IMAGE_TEXT = Kind(
    description="a model of pictures and texts",
    commands="jaxformer classify --images --texts",
    use="compare with jaxformer classify --images PICTURES --texts FILE --workdir {workdir}",
    corpora=("image_text",),
    data=ImageTextConfig,
    networks=(CLIP, VisionTextDualEncoder),
    inputs=lambda model: (jax.ShapeDtypeStruct((1, *model.image_shape), jnp.float32), TOKENS),
)
