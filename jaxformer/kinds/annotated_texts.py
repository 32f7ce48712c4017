"""Uses of BERT besides classes of single texts, each with a head of its own."""

import dataclasses

from jaxformer.data.annotated import AnnotatedConfig
from jaxformer.kinds.kind import Kind
from jaxformer.models.bert import Bert

QUESTION_ANSWERING = Kind(
    description="a model for question answering",
    commands="jaxformer answer",
    use="answer questions with jaxformer answer --workdir {workdir}",
    corpora=("squad",),
    data=AnnotatedConfig,
    networks=(Bert,),
)
TAGGING = dataclasses.replace(
    QUESTION_ANSWERING,
    description="a tagger",
    commands="jaxformer tag",
    use="tag words with jaxformer tag --workdir {workdir}",
    corpora=("tagged",),
)
