"""All kinds of experiments, and the kind of a corpus."""

from jaxformer import kinds
from jaxformer.kinds.kind import Kind
from jaxformer.kinds.translation import TRANSLATION
from jaxformer.registry import find_values


def known_kinds() -> tuple[Kind, ...]:
    return find_values(kinds, Kind)


def kind_of(corpus: object) -> Kind:
    """Returns the kind of experiment on a corpus; translation if there is no such corpus."""
    for kind in known_kinds():
        if corpus in kind.corpora:
            return kind
    return TRANSLATION
