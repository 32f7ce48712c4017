"""Search over any step function (section 6.1 of the paper). Knows no model.

- :mod:`jaxformer.search.beam`: beam search; greedy search is its beam of one.
- :mod:`jaxformer.search.state`: what it holds from step to step, and what it returns.
- :mod:`jaxformer.search.cache`: what a step function remembers, and how it follows hypotheses.
- :mod:`jaxformer.search.penalties`: how scores of hypotheses of different length compare.
"""

from jaxformer.search.beam import StepFn, beam_search
from jaxformer.search.penalties import gnmt_penalty
from jaxformer.search.state import BeamResult

__all__ = ["BeamResult", "StepFn", "beam_search", "gnmt_penalty"]
