"""The simpler simple recurrent unit against a loop over its equations, also in packed rows."""

import jax
import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.nn import SSRU, Block, FeedForward, Keys, Stack

from .weights import normal, random_params

X = normal(2, 6, 8)  # [B, T, D]
BLOCK = Block(SSRU(), FeedForward(d_ff=16))
STACK = Stack(BLOCK, num_layers=2)
CAUSAL = Keys.of_sequence(6, causal=True)
VARIABLES = {"params": random_params(STACK, X, CAUSAL)}


def test_the_scan_equals_a_loop():
    layer = SSRU()
    params = random_params(layer, X, CAUSAL, method="attend")

    @jax.jit
    def attend(params):
        return layer.apply({"params": params}, X, CAUSAL, method="attend")

    found, cache = attend(params)

    assert cache is None
    state = np.zeros((2, 8))  # [B, D]
    outputs = []
    for x in X.swapaxes(0, 1).astype(np.float64):  # [B, D] of each step
        gate = x @ params["forget"] + params["forget_bias"]
        forget = 1 / (1 + np.exp(-gate))
        candidate = x @ params["input"]
        state = forget * state + (1 - forget) * candidate
        outputs.append(np.maximum(state, 0))
    expected = np.stack(outputs, axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@jax.jit
def whole(variables, x, segments=None):
    keys = Keys.of_sequence(x.shape[1], segments, causal=True)
    return STACK.apply(variables, x, keys)


def test_packed_sequences_do_not_see_each_other():
    segments = np.array([[1, 1, 2, 2, 2, 0]] * 2)

    packed = whole(VARIABLES, X, segments)

    second = slice(2, 5)  # the tokens of segment 2
    alone = whole(VARIABLES, X[:, second])
    np.testing.assert_allclose(packed[:, second], alone, rtol=1e-4, atol=1e-5)


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
