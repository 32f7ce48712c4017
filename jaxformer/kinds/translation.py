"""Translation: pairs of sentences."""

from jaxformer.data.corpus import DataConfig, known_sources
from jaxformer.kinds.kind import TOKENS, Kind
from jaxformer.models.student import Student
from jaxformer.models.t5 import T5
from jaxformer.models.transformer import Transformer

TRANSLATION = Kind(
    description="a model of sentence pairs",
    commands="jaxformer translate",
    use="translate with jaxformer translate --workdir {workdir}",
    corpora=tuple(source.name for source in known_sources().values() if source.open),
    data=DataConfig,
    networks=(Transformer, T5, Student),
    inputs=lambda model: (TOKENS, TOKENS),
)
