"""Search over any step function (section 6.1 of the paper). Imports no model.

- :mod:`jaxformer.search.algorithm`: beam search and sampling as objects.
- :mod:`jaxformer.search.settings`: their settings.
- :mod:`jaxformer.search.constraints`: callables that forbid tokens.
- :mod:`jaxformer.search.beam`: beam search; with a beam of one, greedy search.
- :mod:`jaxformer.search.candidates`: selection among one-token continuations in beam search.
- :mod:`jaxformer.search.sampling`: random sampling of hypotheses.
- :mod:`jaxformer.search.ensembles`: several step functions combined into one.
- :mod:`jaxformer.search.top_k`: the k best tokens of a vocabulary.
- :mod:`jaxformer.search.penalties`: length penalties.
- :mod:`jaxformer.search.state`: states between two steps, and results.
- :mod:`jaxformer.search.beam_cache`: caches of step functions, and reordering them.
- :mod:`jaxformer.search.step_loop`: the loop over a step function.

Names are imported on first use, so that configs, which hold a search algorithm, need no JAX.

Departs from the paper: everything beyond beam search with the length penalty of its section 6.1,
such as sampling, constraints, other penalties, diverse beams and ensembles, all optional.
"""

from jaxformer.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)  # pyright: ignore[reportUnsupportedDunderAll]
