"""The compiled search: it does not sort all candidates, and disabled options add no operations."""

import jax
import numpy as np
import pytest

from jaxformer.search.beam import step

from .oracles import beam


def step_of(**changes):
    """Returns a step of the search as a function of arrays, and its arguments."""
    settings = beam(beam_size=4, **changes)
    table = np.zeros((1, 1, 997, 997), np.float32)
    state = jax.jit(lambda table: settings.start(table, [6], 6))(table)
    arrays, structure = jax.tree.flatten(state)

    def one(*arrays):
        state = jax.tree.unflatten(structure, arrays)
        return jax.tree.leaves(step(settings, lambda t, cache: (cache[0, 0][t], cache), state))

    return one, arrays


OPTIONS = {"min_length": 2, "no_repeat_ngram": 2, "diversity_groups": 2, "diversity_penalty": 0.5}


@pytest.mark.parametrize("changes", [{}, OPTIONS])
def test_candidates_are_not_sorted(changes):
    """XLA keeps its top-k and does not fall back to sorting all N * V candidates of every step."""
    function, arrays = step_of(**changes)
    program = jax.jit(function).lower(*arrays).compile().as_text()
    assert " sort(" not in program
    assert "TopK" in program
