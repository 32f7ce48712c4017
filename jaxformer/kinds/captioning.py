"""Models that read pictures and write texts."""

import jax
import jax.numpy as jnp

from jaxformer.data.captions import CaptionsConfig
from jaxformer.kinds.kind import TOKENS, Kind
from jaxformer.models.captioning import VisionEncoderDecoder

CAPTIONING = Kind(
    description="a writer of captions",
    commands="jaxformer caption",
    use="write with jaxformer caption --images PICTURES --workdir {workdir}",
    corpora=("captions",),
    data=CaptionsConfig,
    networks=(VisionEncoderDecoder,),
    inputs=lambda model: (jax.ShapeDtypeStruct((1, *model.image_shape), jnp.float32), TOKENS),
)
