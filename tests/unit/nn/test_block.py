"""Layer norm, feed-forward network and residual order against their formulas in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jaxformer import cross_entropy
from jaxformer.errors import UserError
from jaxformer.nn import (
    Block,
    FeedForward,
    LayerNorm,
    MultiHeadAttention,
    Residual,
    Stack,
    embed,
    output_logits,
)

from .weights import random_params

X = np.random.default_rng(0).normal(2.0, 3.0, size=(2, 5, 8)).astype(np.float32)


def normalized(x):
    x = np.asarray(x, np.float64)
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)


def test_layer_norm():
    scale, bias = np.arange(1.0, 9.0, dtype=np.float32), np.full(8, 0.5, np.float32)
    actual = jax.jit(LayerNorm().apply)({"params": {"scale": scale, "bias": bias}}, X)
    np.testing.assert_allclose(actual, normalized(X) * scale + bias, rtol=1e-4, atol=1e-5)


def test_layer_norm_statistics_are_float32_for_bfloat16():
    # Near 256, consecutive bfloat16 numbers differ by 2, so statistics in bfloat16 would fail.
    x = np.array([[256.0, 258.0, 260.0, 262.0] * 2], jnp.bfloat16)
    params = {"scale": np.ones(8, np.float32), "bias": np.zeros(8, np.float32)}
    actual = jax.jit(LayerNorm().apply)({"params": params}, x)
    assert actual.dtype == jnp.bfloat16
    np.testing.assert_allclose(
        np.asarray(actual).astype(np.float32), normalized(x.astype(np.float32)), atol=0.01
    )


def test_feed_forward_is_equation_2():
    layer = FeedForward(16)
    p = random_params(layer, X)
    expected = np.maximum(0, X @ p["inner"] + p["inner_bias"]) @ p["outer"] + p["outer_bias"]
    found = jax.jit(layer.apply)({"params": p}, X)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_other_dropout_rates_are_refused(rate):
    with pytest.raises(UserError, match="Dropout: expected rate to be 0 or more and below 1, got"):
        random_params(MultiHeadAttention(2, dropout_rate=rate), X)


def test_other_orders_of_the_norm_are_refused():
    with pytest.raises(UserError, match="Residual: expected norm_position to be 'post', 'pre'"):
        random_params(Residual("Pre"), X, lambda h: h)


class Expert(nn.Module):
    """A feed-forward network with a loss of its own, statistics and random numbers."""

    @nn.compact
    def __call__(self, x):
        self.sow("losses", "balance", x.mean())
        count = self.variable("statistics", "count", lambda: jnp.zeros(()))
        if not self.is_initializing():
            count.value += 1
        noise = jax.random.normal(self.make_rng("noise"), ())
        self.sow("noises", "noise", noise)
        return nn.Dense(x.shape[-1])(x)


@jax.jit
def run_stack(x):
    stack = Stack(Block(MultiHeadAttention(2), Expert()), num_layers=3)
    keys = {"params": jax.random.key(0), "noise": jax.random.key(1)}
    variables = stack.init(keys, x)
    collected = ["losses", "statistics", "noises"]
    state = {name: variables[name] for name in ("params", "statistics")}
    found = stack.apply(state, x, rngs={"noise": keys["noise"]}, mutable=collected)[1]
    return variables["params"], found


def test_a_stack_keeps_all_that_its_layers_collect():
    params, found = jax.device_get(run_stack(X))
    own = {name: found[name]["layers"]["feed_forward"] for name in found}
    assert own["losses"]["balance"][0].shape == (3,)
    np.testing.assert_array_equal(own["statistics"]["count"], np.ones(3))
    assert len(set(own["noises"]["noise"][0].tolist())) == 3
    # Layers differ at initialization.
    query = params["layers"]["self_attention"]["query"]
    assert query.shape == (3, 8, 2, 4)
    assert len({tuple(layer.ravel().tolist()) for layer in query}) == 3


@pytest.mark.parametrize("shape", [(0, 5, 8), (2, 0, 8)])
def test_empty_batches_and_sequences(shape):
    empty, table = (jnp.asarray(np.ones(s, np.float32)) for s in (shape, (11, 8)))

    def shape_of(function, *arguments):
        return jax.eval_shape(function, *arguments).shape

    keys = {"params": jax.random.key(0), "noise": jax.random.key(1)}
    for layer in (FeedForward(16), MultiHeadAttention(2), Block(MultiHeadAttention(2), Expert())):
        found = shape_of(lambda layer=layer: layer.init_with_output(keys, empty)[0])
        assert found == shape
    assert shape_of(output_logits, empty, table) == (*shape[:2], 11)
    assert shape_of(embed, table, np.ones(shape[:2], int)) == shape
    rows = (np.ones(0, int), np.ones(0, np.float32))
    sums = jax.jit(cross_entropy, static_argnums=4)(empty.reshape(0, 8), table, *rows, 0.1)
    assert all(value == 0 for value in jax.device_get(jax.tree.leaves(sums)))


NORM = {"params": {"norm": {"scale": np.ones(8), "bias": np.zeros(8)}}}


@pytest.mark.parametrize(
    ("norm_position", "formula"),
    [
        ("post", lambda x: normalized(x + 3 * x)),
        ("pre", lambda x: x + 3 * normalized(x)),
    ],
)
def test_residual_order(norm_position, formula):
    layer = Residual(norm_position)
    found = jax.jit(lambda x: layer.apply(NORM, x, lambda h: 3 * h, deterministic=True))(X)
    np.testing.assert_allclose(found, formula(X), rtol=1e-4, atol=1e-4)


def test_dropout_acts_on_the_sublayer_and_not_on_the_residual():
    @jax.jit
    def run(x):
        rngs = {"dropout": jax.random.key(0)}
        layer = Residual("pre", dropout_rate=0.5)
        return layer.apply(NORM, x, jnp.ones_like, deterministic=False, rngs=rngs)

    np.testing.assert_allclose(np.unique(np.round(run(X) - X, 4)), [0.0, 2.0], atol=1e-3)
