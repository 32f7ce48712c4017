"""All kinds of experiments, and the kind of a corpus."""

from jaxformer import kinds
from jaxformer.kinds.kind import Kind
from jaxformer.kinds.translation import TRANSLATION
from jaxformer.models.bert import Bert
from jaxformer.models.encoder import Encoder
from jaxformer.registry import find_values


def known_kinds() -> tuple[Kind, ...]:
    return find_values(kinds, Kind)


def encoder_kinds() -> tuple[Kind, ...]:
    """Returns the kinds whose models are encoders of a text, whatever their heads."""
    encoders = {Encoder, Bert}
    return tuple(kind for kind in known_kinds() if encoders & {*kind.networks})


def kind_of(corpus: object) -> Kind:
    """Returns the kind of experiment on a corpus; translation if there is no such corpus."""
    for kind in known_kinds():
        if corpus in kind.corpora:
            return kind
    return TRANSLATION
