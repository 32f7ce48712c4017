"""Search over any step function (section 6.1 of the paper). Imports no model.

Departs from the paper: everything beyond beam search with the length penalty of section 6.1,
such as sampling, constraints, other penalties, diverse beams, ensembles and contrasts, all
optional.
"""

from jaxformer.search.algorithm import Algorithm
from jaxformer.search.beam import BeamSearch, beam_search
from jaxformer.search.constraints import (
    Constraint,
    ForcedPrefix,
    MinLength,
    NoRepeatNgram,
    SearchContext,
)
from jaxformer.search.contrast import contrast
from jaxformer.search.ensembles import ensemble
from jaxformer.search.penalties import gnmt_penalty
from jaxformer.search.sampling import Sampling, sample
from jaxformer.search.state import BeamResult, take_sentences
from jaxformer.search.step_loop import PrefillFn, StepFn

__all__ = [
    "Algorithm",
    "BeamResult",
    "BeamSearch",
    "Constraint",
    "ForcedPrefix",
    "MinLength",
    "NoRepeatNgram",
    "PrefillFn",
    "Sampling",
    "SearchContext",
    "StepFn",
    "beam_search",
    "contrast",
    "ensemble",
    "gnmt_penalty",
    "sample",
    "take_sentences",
]
