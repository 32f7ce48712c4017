"""The compiled search: it does not sort all candidates, and disabled options add no operations."""

import jax
import numpy as np
import pytest

from jaxformer.search.beam import step
from jaxformer.search.beam_cache import reorder_cache

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


def test_disabled_options_add_no_operations():
    for changes in ({"min_length": 1}, {"no_repeat_ngram": 1}, {"diversity_groups": 2}, {}):
        function, arrays = step_of(**changes)
        assert ("scatter" in str(jax.make_jaxpr(function)(*arrays))) == bool(changes)


def test_nothing_is_gathered_for_greedy_search():
    cache = {"own": np.ones((2, 1, 5)), "position": np.array(0)}
    assert jax.make_jaxpr(reorder_cache)(cache, np.zeros((2, 1), np.int32)).eqns == []
    shared = {"keys": np.ones((2, 1, 5))}  # By three hypotheses.
    assert jax.make_jaxpr(reorder_cache)(shared, np.zeros((2, 3), np.int32)).eqns == []
