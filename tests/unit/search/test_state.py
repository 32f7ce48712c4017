"""States: their contents are checked, and sentences can be selected from them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.search import BeamResult, take_sentences
from jaxformer.search.state import best_first, prepare

from .oracles import INFINITY, PAD, beam


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"capacity": 0}, "capacity must be at least 1: got 0"),
        (
            {"max_lengths": jnp.ones((1, 1), int)},
            r"max_lengths must hold one number .* shape \(1, 1\)",
        ),
        ({"max_lengths": jnp.ones((0,), int)}, r"max_lengths must hold one number .* shape \(0,\)"),
        ({"prefix": jnp.ones((2, 3), int)}, r"prefix must hold .* \[1, tokens\]: got \(2, 3\)"),
        ({"prefix": jnp.ones((1,), int)}, r"prefix must hold .* \[1, tokens\]: got \(1,\)"),
        ({"cache": jnp.ones((1, 3))}, r"cache must lead with axes \[batch, beams\] = \[1, 2\]"),
    ],
)
def test_mismatched_arguments_are_refused(arguments: dict, message: str):
    right = {"cache": (), "max_lengths": jnp.array([3]), "capacity": 6, "prefix": None}
    with pytest.raises(UserError, match=message):
        prepare(**{**right, **arguments}, hypotheses=2)


@pytest.mark.parametrize("convert", [list, tuple, np.array, jnp.array])
def test_lists_and_arrays_are_the_same(convert):
    _, limits, prefix = prepare((), convert([6, 3]), 2, 6, convert([[7, 8], [9, 0]]))
    assert (limits.dtype, prefix.dtype) == (jnp.int32, jnp.int32)
    assert (limits.tolist(), prefix.tolist()) == ([6, 3], [[7, 8], [9, 0]])


def test_limits_are_clipped_to_the_capacity():
    _, limits, prefix = prepare((), jnp.array([-1, 0, 3, 99]), 2, 6, None)
    assert limits.tolist() == [0, 0, 3, 6]
    assert prefix.shape == (4, 0)


def test_take_sentences_selects_from_every_leaf():
    cache = {"own": jnp.arange(12.0).reshape(3, 2, 2), "shared": jnp.ones((3, 1)), "step": 7}
    state = beam().start(cache, jnp.array([3, 2, 1]), 6, jnp.array([[4], [5], [6]]))
    rows = np.array([2, 0])
    taken = take_sentences(state, jnp.array(rows))
    leaves = zip(jax.tree.leaves(state), jax.tree.leaves(taken), strict=True)
    for before, after in leaves:
        np.testing.assert_array_equal(after, before[rows] if before.ndim else before)


def test_best_first_blanks_what_does_not_exist():
    result = BeamResult(
        tokens=jnp.array([[[5, 6], [7, 8], [9, 9]]]),
        lengths=jnp.array([[2, 1, 2]]),
        scores=jnp.array([[-2.0, -INFINITY, -1.0]]),
        log_probs=jnp.array([[-3.0, -INFINITY, -4.0]]),
    )
    sorted_result = best_first(result, PAD)
    assert sorted_result.tokens.tolist() == [[[9, 9], [5, 6], [PAD, PAD]]]
    assert sorted_result.lengths.tolist() == [[2, 2, 0]]
    assert sorted_result.log_probs.tolist() == [[-4.0, -3.0, -INFINITY]]
