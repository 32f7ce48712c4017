"""Classification of pictures."""

import jax
import jax.numpy as jnp

from jaxformer.data.images import ImagesConfig, known_images
from jaxformer.kinds.kind import Kind
from jaxformer.models.cnn import CNN
from jaxformer.models.convit import ConViT
from jaxformer.models.swin import Swin
from jaxformer.models.vit import ViT

IMAGE_CLASSIFICATION = Kind(
    description="a classifier of pictures",
    commands="jaxformer classify --images",
    use="classify with jaxformer classify --images PICTURES --workdir {workdir}",
    corpora=tuple(known_images()),
    data=ImagesConfig,
    networks=(ViT, Swin, ConViT, CNN),
    inputs=lambda model: (jax.ShapeDtypeStruct((1, *model.image_shape), jnp.float32),),
    load_tokenizer=None,
)
