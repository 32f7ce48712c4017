"""Parsing: sentences and their trees (section 6.3)."""

import dataclasses

from jaxformer.kinds.translation import TRANSLATION

PARSING = dataclasses.replace(
    TRANSLATION,
    description="a parser",
    commands="jaxformer parse",
    use="parse with jaxformer parse --workdir {workdir}",
    corpora=("trees",),
)
