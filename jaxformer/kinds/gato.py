"""A multi-task agent: texts, pictures and control in one model."""

import jax
import jax.numpy as jnp

from jaxformer.data.agent_tasks import AgentConfig
from jaxformer.data.stream import load_stream_tokenizer
from jaxformer.kinds.kind import TOKENS, Kind
from jaxformer.models.gato import Gato

GATO = Kind(
    description="a multi-task agent",
    commands="jaxformer play",
    use="balance poles with jaxformer play --workdir {workdir}",
    corpora=("agent",),
    data=AgentConfig,
    networks=(Gato,),
    inputs=lambda model: (
        TOKENS,
        jax.ShapeDtypeStruct((1, 1, *model.image_shape), jnp.uint8),
    ),
    load_tokenizer=load_stream_tokenizer,
)
