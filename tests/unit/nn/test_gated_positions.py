"""Gated positional attention: the initial convolution, and the formula of the weights."""

import jax
import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.nn.gated_positions import GatedPositionalAttention, neighbors, offsets
from jaxformer.nn.keys import Keys

GRID = (5, 6)
X = np.random.default_rng(0).normal(size=(2, 30, 9)).astype(np.float32)


def test_offsets_are_of_the_key_from_the_query():
    found = offsets((2, 3))
    assert found.shape == (6, 6, 3)
    # From the patch in row 1, column 0 to the one in row 0, column 2.
    assert found[3, 2].tolist() == [2, -1, 5]


def test_heads_begin_at_the_places_of_a_kernel():
    assert neighbors(9)[:4] == [(-1, -1), (0, -1), (1, -1), (-1, 0)]
    with pytest.raises(UserError, match=r"number of heads that is a square.*: got 6"):
        neighbors(6)


def apply(layer, params, method):
    return jax.jit(lambda params: layer.apply(params, method=method))(params)


def test_a_sharp_layer_is_a_convolution():
    """With closed contents, open gates and W^O the identity, each head moves its own channels."""
    layer = GatedPositionalAttention(num_heads=9, use_bias="output", grid=GRID, locality=50.0)
    keys = Keys.of_sequence(30)

    def init(key):
        return layer.init(key, X, keys, method="attend")

    params = jax.device_get(jax.jit(init)(jax.random.key(0)))["params"]
    params["gate"] = np.full(9, 30, np.float32)
    params["output"] = np.eye(9, dtype=np.float32)
    found, _ = jax.jit(lambda p: layer.apply({"params": p}, X, keys, method="attend"))(params)

    images = X.reshape(2, *GRID, 9)
    moved = np.empty_like(images)
    for head, (right, down) in enumerate(neighbors(9)):
        rows = np.clip(np.arange(GRID[0]) + int(down), 0, GRID[0] - 1)
        columns = np.clip(np.arange(GRID[1]) + int(right), 0, GRID[1] - 1)
        moved[..., head] = images[..., head][:, rows][:, :, columns]
    np.testing.assert_allclose(np.asarray(found).reshape(images.shape), moved, atol=1e-5)


def test_weights_are_the_formula_and_sum_to_one():
    layer = GatedPositionalAttention(num_heads=4, d_k=3, d_v=5, grid=GRID, dropout_rate=0.5)
    keys = Keys.of_sequence(30)
    rng = np.random.default_rng(1)
    params = {
        "query": rng.normal(size=(9, 4, 3)),
        "key": rng.normal(size=(9, 4, 3)),
        "value": rng.normal(size=(9, 4, 5)),
        "output": rng.normal(size=(20, 9)),
        "position": rng.normal(size=(3, 4)),
        "position_bias": rng.normal(size=4),
        "gate": rng.normal(size=4),
    }

    def run(params):
        arrays = jax.tree.map(lambda array: array.astype(np.float32), params)
        return layer.apply({"params": arrays}, X, keys, method="attend", mutable=["intermediates"])

    (found, _), recorded = jax.jit(run)(params)
    weights = np.asarray(recorded["intermediates"]["weights"][0])
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)

    def softmax(scores):
        exponents = np.exp(scores - scores.max(-1, keepdims=True))
        return exponents / exponents.sum(-1, keepdims=True)

    x = X[0]
    outputs = []
    for head in range(4):
        queries = x @ params["query"][:, head]
        keys_of_head = x @ params["key"][:, head]
        values = x @ params["value"][:, head]
        scores = queries @ keys_of_head.T / np.sqrt(3)

        of_offsets = offsets(GRID) @ params["position"][:, head]
        places = of_offsets + params["position_bias"][head]
        gate = 1 / (1 + np.exp(-params["gate"][head]))

        expected = (1 - gate) * softmax(scores) + gate * softmax(places)
        np.testing.assert_allclose(weights[0, head], expected, rtol=1e-3, atol=1e-6)
        outputs.append(expected @ values)

    query = 7
    key = 22
    assert weights[0, 0, query, key] != weights[0, 0, key, query]
    expected = np.concatenate(outputs, axis=-1) @ params["output"]
    np.testing.assert_allclose(found[0], expected, rtol=1e-3, atol=1e-4)


def test_other_grids_and_caches_are_refused():
    layer = GatedPositionalAttention(num_heads=4, grid=(2, 2))
    keys = Keys.of_sequence(30)
    with pytest.raises(UserError, match=r"expected 4 patches without rules, .*: got 30 patches"):
        layer.init(jax.random.key(0), X[:, :, :8], keys, method="attend")

    windows = Keys.of_sequence(4, window=1)
    with pytest.raises(UserError, match="a memory or a cache: got window"):
        layer.init(jax.random.key(0), X[:, :4, :8], windows, method="attend")
