"""Search over any step function (section 6.1 of the paper). Knows no model.

- :mod:`jaxformer.search.beam`: beam search; greedy search is its beam of one.
- :mod:`jaxformer.search.sampling`: hypotheses drawn at random.
- :mod:`jaxformer.search.ensembles`: several step functions as one.
- :mod:`jaxformer.search.rules`: the settings of a search.
- :mod:`jaxformer.search.constraints`: what hypotheses may not go on with.
- :mod:`jaxformer.search.continuations`: how beam search chooses among what they may go on with.
- :mod:`jaxformer.search.top_k`: the best few of a vocabulary.
- :mod:`jaxformer.search.penalties`: how scores of hypotheses of different length compare.
- :mod:`jaxformer.search.state`: what a search holds from step to step, and what it returns.
- :mod:`jaxformer.search.cache`: what a step function remembers, and how it follows hypotheses.
- :mod:`jaxformer.search.stepping`: what every search does with a step function.

Departs from the paper: what is more than beam search with the length penalty of its section 6.1, as
sampling, constraints, other penalties, diverse beams and ensembles, all optional.
"""

from jaxformer.search.beam import beam_search
from jaxformer.search.ensembles import ensemble
from jaxformer.search.penalties import gnmt_penalty
from jaxformer.search.rules import Rules, SamplingRules
from jaxformer.search.sampling import sample
from jaxformer.search.state import BeamResult, take_sentences
from jaxformer.search.stepping import StepFn

__all__ = [
    "BeamResult",
    "Rules",
    "SamplingRules",
    "StepFn",
    "beam_search",
    "ensemble",
    "gnmt_penalty",
    "sample",
    "take_sentences",
]
