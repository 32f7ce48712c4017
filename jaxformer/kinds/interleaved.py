"""Language models that read pictures within their texts."""

import jax
import jax.numpy as jnp

from jaxformer.data.interleaved import InterleavedConfig
from jaxformer.data.stream import load_stream_tokenizer
from jaxformer.kinds.kind import TOKENS, Kind
from jaxformer.models.flamingo import Flamingo

INTERLEAVED = Kind(
    description="a language model that reads pictures",
    commands="jaxformer caption",
    use="write with jaxformer caption --images PICTURES --workdir {workdir}",
    corpora=("interleaved",),
    data=InterleavedConfig,
    networks=(Flamingo,),
    inputs=lambda model: (jax.ShapeDtypeStruct((1, 1, *model.image_shape), jnp.float32), TOKENS),
    load_tokenizer=load_stream_tokenizer,
)
