"""Search over any step function (section 6.1 of the paper). Imports no model.

- :mod:`jaxformer.search.algorithm`: beam search and sampling as objects with three verbs.
- :mod:`jaxformer.search.settings`: their settings.
- :mod:`jaxformer.search.constraints`: callables that forbid tokens.
- :mod:`jaxformer.search.beam`: beam search; greedy search is its beam of one.
- :mod:`jaxformer.search.candidates`: the choice of beam search among one-token continuations.
- :mod:`jaxformer.search.sampling`: hypotheses drawn at random.
- :mod:`jaxformer.search.ensembles`: several step functions as one.
- :mod:`jaxformer.search.top_k`: the k best tokens of a vocabulary.
- :mod:`jaxformer.search.penalties`: length penalties.
- :mod:`jaxformer.search.state`: states between two steps, and results.
- :mod:`jaxformer.search.beam_cache`: caches of step functions, and how they follow hypotheses.
- :mod:`jaxformer.search.step_loop`: the loop over a step function.

Names are imported when they are first used: a config, which holds an algorithm, needs no JAX.

Departs from the paper: everything beyond beam search with the length penalty of its section 6.1,
such as sampling, constraints, other penalties, diverse beams and ensembles, all optional.
"""

from jaxformer.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)  # pyright: ignore[reportUnsupportedDunderAll]
