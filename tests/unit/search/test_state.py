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
            {"max_lengths": jnp.asarray([[1]])},
            r"max_lengths must hold one number .* shape \(1, 1\)",
        ),
        (
            {"max_lengths": jnp.asarray([], int)},
            r"max_lengths must hold one number .* shape \(0,\)",
        ),
        (
            {"prefix": jnp.asarray([[1] * 3] * 2)},
            r"prefix must hold .* \[1, tokens\]: got \(2, 3\)",
        ),
        ({"prefix": jnp.asarray([1])}, r"prefix must hold .* \[1, tokens\]: got \(1,\)"),
        *[
            ({"cache": {"keys": [np.ones(shape)]}}, r"cache\['keys'\]\[0\] must lead .*= \[1, 2\]")
            for shape in [(1,), (2, 2), (1, 3, 5), (2, 5)]
        ],
    ],
)
def test_mismatched_arguments_are_refused(arguments, message):
    right = {"cache": (), "max_lengths": jnp.array([3]), "capacity": 6, "prefix": None}
    with pytest.raises(UserError, match=message):
        jax.eval_shape(lambda: prepare(**{**right, **arguments}, hypotheses=2))


@pytest.mark.parametrize("convert", [list, tuple, np.array, jnp.array])
def test_limits_are_clipped_whether_lists_or_arrays(convert):
    limits, prefix = convert([-1, 0, 3, 99]), convert([[7, 8], [9, 0], [0, 0], [1, 1]])
    _, limits, prefix = jax.jit(lambda: prepare((), limits, 2, 6, prefix))()
    assert (limits.dtype, prefix.dtype) == (np.int32, np.int32)
    assert limits.tolist() == [0, 0, 3, 6]
    assert prefix.tolist() == [[7, 8], [9, 0], [0, 0], [1, 1]]


def test_take_sentences_selects_from_every_leaf():
    cache = {"own": np.arange(12.0).reshape(3, 2, 2), "shared": np.ones((3, 1)), "step": 7}
    rows = np.array([2, 0])

    @jax.jit
    def run(rows):
        state = beam().start(cache, [3, 2, 1], 6, [[4], [5], [6]])
        return [jax.tree.leaves(s) for s in (state, take_sentences(state, rows))]

    for before, after in zip(*jax.device_get(run(rows)), strict=True):
        np.testing.assert_array_equal(after, before[rows] if before.ndim else before)


def test_best_first_blanks_what_does_not_exist():
    result = BeamResult(
        tokens=np.int32([[[5, 6], [7, 8], [9, 9]]]),
        lengths=np.int32([[2, 1, 2]]),
        scores=np.float32([[-2.0, -INFINITY, -1.0]]),
        log_probs=np.float32([[-3.0, -INFINITY, -4.0]]),
    )
    found = jax.jit(best_first, static_argnames="pad_id")(result, pad_id=PAD)
    assert found.tokens.tolist() == [[[9, 9], [5, 6], [PAD, PAD]]]
    assert found.lengths.tolist() == [[2, 2, 0]]
    assert found.log_probs.tolist() == [[-4.0, -3.0, -INFINITY]]
