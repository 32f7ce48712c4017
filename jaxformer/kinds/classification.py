"""Classification of texts, and the masked texts that a classifier is pretrained on."""

import dataclasses

from jaxformer.data.labeled import LabeledConfig
from jaxformer.kinds.kind import Kind
from jaxformer.models.bert import Bert
from jaxformer.models.encoder import Encoder

CLASSIFICATION = Kind(
    description="a classifier",
    commands="jaxformer classify",
    use="classify with jaxformer classify --workdir {workdir}",
    corpora=("labeled",),
    data=LabeledConfig,
    networks=(Encoder, Bert),
)
MASKED_LANGUAGE_MODELING = dataclasses.replace(
    CLASSIFICATION,
    description="a masked language model",
    commands="training.init_from of a classifier",
    use="train a classifier with --config.training.init_from={workdir}",
    corpora=("masked",),
)
