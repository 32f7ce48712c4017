"""The recurrence against a loop over its equations, whole and packed."""

import jax
import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.nn import SSRU, Block, FeedForward, Keys, Stack

from .weights import normal, random_params

X = normal(2, 6, 8)  # [B, T, D]
BLOCK = Block(SSRU(), FeedForward(16))
STACK = Stack(BLOCK, 2)
CAUSAL = Keys.of_sequence(6, causal=True)
VARIABLES = {"params": random_params(STACK, X, CAUSAL)}


def test_the_scan_equals_a_loop():
    layer = SSRU()
    keys = Keys.of_sequence(6, causal=True)
    p = random_params(layer, X, keys, method="attend")

    @jax.jit
    def attend(p):
        return layer.apply({"params": p}, X, keys, method="attend")

    found, cache = attend(p)

    assert cache is None
    state = np.zeros((2, 8))
    expected = []
    for x in X.swapaxes(0, 1).astype(np.float64):
        gate = x @ p["forget"] + p["forget_bias"]
        kept = 1 / (1 + np.exp(-gate))
        candidate = x @ p["input"]
        state = kept * state + (1 - kept) * candidate
        expected.append(np.maximum(state, 0))
    of_steps = np.stack(expected, axis=1)
    np.testing.assert_allclose(found, of_steps, rtol=1e-5, atol=1e-6)


@jax.jit
def whole(variables, x, segments=None):
    keys = Keys.of_sequence(x.shape[1], segments, causal=True)
    return STACK.apply(variables, x, keys)


def test_packed_sequences_do_not_see_each_other():
    segments = np.array([[1, 1, 2, 2, 2, 0]] * 2)

    packed = whole(VARIABLES, X, segments)

    alone = whole(VARIABLES, X[:, 2:5])
    np.testing.assert_allclose(packed[:, 2:5], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({}, "expected causal keys"),
        ({"causal": True, "window": 2}, "expected no window, which a recurrence lacks"),
    ],
)
def test_keys_of_another_kind_are_refused(rules, words):
    keys = Keys.of_sequence(6, **rules)
    with pytest.raises(UserError, match=words):
        random_params(SSRU(), X, keys, method="attend")
