"""Candidates: the blockwise top-k against a stable sort, preferences, and the compiled program."""

import jax
import numpy as np
import pytest

from jaxformer.search.beam import top_k

from .oracles import beam

compiled = jax.jit(top_k, static_argnums=1)


@pytest.mark.parametrize(
    ("size", "k"), [(5, 5), (128, 1), (1000, 2), (1024, 5), (1025, 2), (8001, 5)]
)
def test_equals_a_stable_sort_with_ties_and_impossible_values(size, k):
    random = np.random.default_rng(size + k)
    values = random.integers(-3, 4, (2, 3, size)).astype(np.float32)  # Many ties.
    values[random.random(values.shape) < 0.3] = -np.inf
    values[0, 0] = -np.inf
    values[0, 1] = random.normal(size=size)
    values[0, 2, :] = -np.inf
    values[0, 2, size - 1] = 1.0
    places = np.argsort(-values, axis=2, kind="stable")[:, :, :k]
    found = jax.device_get(compiled(values, k))
    np.testing.assert_array_equal(found[0], np.take_along_axis(values, places, axis=2))
    np.testing.assert_array_equal(found[1], places)


def test_constraint_may_prefer_tokens_beyond_probability_one():
    # Token 1 after the second hypothesis is preferred, by 3. Both hypotheses have probability 1.
    logits = np.log(np.full((1, 2, 2), 0.5, np.float32))
    preferred = logits + np.float32([[[0.0, 2.0], [0.0, 3.0]]])
    settings = beam(constraints=(lambda logits, context: preferred,), eos_id=0)
    at_limit = np.array([False])
    arguments = logits, preferred, np.zeros((1, 2), np.float32), at_limit
    found = jax.jit(lambda *arguments: settings.select_candidates(*arguments)[0])(*arguments)
    assert found.parents.tolist() == [[1, 0]]
    np.testing.assert_allclose(found.log_probs, np.log([[0.5, 0.5]]), rtol=1e-6)


def step_of(**changes):
    """Returns a search of one step as a function of arrays, and its arguments."""
    settings = beam(beam_size=4, **changes)
    table = np.zeros((1, 1, 997, 997), np.float32)
    state = jax.jit(lambda table: settings.start(table, [6], 6))(table)
    arrays, structure = jax.tree.flatten(state)

    def one(*arrays):
        state = jax.tree.unflatten(structure, arrays)
        return jax.tree.leaves(settings.advance(lambda t, cache: (cache[0, 0][t], cache), state, 1))

    return one, arrays


OPTIONS = {"min_length": 2, "no_repeat_ngram": 2, "diversity_groups": 2, "diversity_penalty": 0.5}


@pytest.mark.parametrize("changes", [{}, OPTIONS])
def test_candidates_are_not_sorted(changes):
    """XLA keeps its top-k and does not fall back to sorting all N * V candidates of every step."""
    function, arrays = step_of(**changes)
    program = jax.jit(function).lower(*arrays).compile().as_text()
    assert " sort(" not in program
    assert "TopK" in program
