"""Translation: pairs of sentences."""

from jaxformer.data.corpus import DataConfig, known_sources
from jaxformer.kinds.kind import TOKENS, Kind
from jaxformer.models.bart import Bart
from jaxformer.models.encoder_decoder import EncoderDecoder
from jaxformer.models.longt5 import LongT5
from jaxformer.models.recurrent import Recurrent
from jaxformer.models.student import Student
from jaxformer.models.t5 import T5
from jaxformer.models.transformer import Transformer

# All corpora of pairs, except those that another kind opens, such as treebanks.
_CORPORA = tuple(source.name for source in known_sources().values() if source.open)

TRANSLATION = Kind(
    description="a model of sentence pairs",
    commands="jaxformer translate",
    use="translate with jaxformer translate --workdir {workdir}",
    corpora=_CORPORA,
    data=DataConfig,
    networks=(Transformer, T5, LongT5, Bart, EncoderDecoder, Student, Recurrent),
    inputs=lambda model: (TOKENS, TOKENS),  # of the source and of the target
)
