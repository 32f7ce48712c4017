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


@pytest.fixture
def x():
    return jnp.asarray(np.random.default_rng(0).normal(2.0, 3.0, size=(2, 5, 8)), jnp.float32)


def normalized(x):
    x = np.asarray(x, np.float64)
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)


def test_layer_norm(x):
    scale, bias = np.arange(1.0, 9.0, dtype=np.float32), np.full(8, 0.5, np.float32)
    actual = LayerNorm().apply({"params": {"scale": scale, "bias": bias}}, x)
    np.testing.assert_allclose(actual, normalized(x) * scale + bias, rtol=1e-4, atol=1e-5)


def test_layer_norm_statistics_are_float32_for_bfloat16():
    # Near 256, consecutive bfloat16 numbers differ by 2, so statistics in bfloat16 would fail.
    x = jnp.asarray([[256.0, 258.0, 260.0, 262.0] * 2], jnp.bfloat16)
    params = {"scale": np.ones(8, np.float32), "bias": np.zeros(8, np.float32)}
    actual = LayerNorm().apply({"params": params}, x)
    assert actual.dtype == jnp.bfloat16
    np.testing.assert_allclose(
        np.asarray(actual, np.float32), normalized(np.asarray(x, np.float32)), atol=0.01
    )


def test_feed_forward_is_equation_2(x):
    layer = FeedForward(16)
    params = layer.init(jax.random.key(0), x)["params"]
    params = jax.tree.map(lambda p: p + 0.1, params)  # Biases are zero at initialization.
    p = jax.tree.map(np.asarray, params)
    expected = np.maximum(0, x @ p["inner"] + p["inner_bias"]) @ p["outer"] + p["outer_bias"]
    np.testing.assert_allclose(layer.apply({"params": params}, x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_other_dropout_rates_are_refused(rate, x):
    with pytest.raises(UserError, match="Dropout: expected rate to be 0 or more and below 1, got"):
        MultiHeadAttention(2, dropout_rate=rate).init(jax.random.key(0), x)


def test_other_orders_of_the_norm_are_refused(x):
    with pytest.raises(UserError, match="Residual: expected norm_position to be 'post', 'pre'"):
        Residual("Pre").init(jax.random.key(0), x, lambda h: h)


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


def test_a_stack_keeps_all_that_its_layers_collect(x):
    stack = Stack(Block(MultiHeadAttention(2), Expert()), num_layers=3)
    keys = {"params": jax.random.key(0), "noise": jax.random.key(1)}
    variables = stack.init(keys, x)
    collections = ["losses", "statistics", "noises"]
    _, found = stack.apply(
        {"params": variables["params"], "statistics": variables["statistics"]},
        x,
        rngs={"noise": keys["noise"]},
        mutable=collections,
    )
    own = {name: found[name]["layers"]["feed_forward"] for name in collections}
    assert own["losses"]["balance"][0].shape == (3,)
    np.testing.assert_array_equal(own["statistics"]["count"], jnp.ones(3))
    assert len(set(own["noises"]["noise"][0].tolist())) == 3


@pytest.mark.parametrize("shape", [(0, 5, 8), (2, 0, 8)])
def test_empty_batches_and_sequences(shape):
    empty = jnp.ones(shape)
    for layer in (FeedForward(16), MultiHeadAttention(2), Block(MultiHeadAttention(2), Expert())):
        keys = {"params": jax.random.key(0), "noise": jax.random.key(1)}
        found, _ = layer.apply(layer.init(keys, empty), empty, rngs=keys, mutable=True)
        assert found.shape == shape
    assert output_logits(empty, jnp.ones((11, 8))).shape == (*shape[:2], 11)
    assert embed(jnp.ones((11, 8)), jnp.ones(shape[:2], int)).shape == shape
    rows = (jnp.ones(0, int), jnp.ones(0))
    sums = cross_entropy(empty.reshape(0, 8), jnp.ones((11, 8)), *rows, 0.1)
    assert all(value == 0 for value in jax.tree.leaves(sums))


@pytest.mark.parametrize(
    ("norm_position", "formula"),
    [
        ("post", lambda x: normalized(x + 3 * x)),
        ("pre", lambda x: x + 3 * normalized(x)),
    ],
)
def test_residual_order(x, norm_position, formula):
    layer = Residual(norm_position)
    variables = {"params": {"norm": {"scale": jnp.ones(8), "bias": jnp.zeros(8)}}}
    actual = layer.apply(variables, x, lambda h: 3 * h, deterministic=True)
    np.testing.assert_allclose(actual, formula(x), rtol=1e-4, atol=1e-4)


def test_dropout_acts_on_the_sublayer_and_not_on_the_residual(x):
    variables = {"params": {"norm": {"scale": jnp.ones(8), "bias": jnp.zeros(8)}}}
    actual = Residual("pre", dropout_rate=0.5).apply(
        variables,
        x,
        lambda h: jnp.ones_like(h),
        deterministic=False,
        rngs={"dropout": jax.random.key(0)},
    )
    np.testing.assert_allclose(np.unique(np.round(actual - x, 4)), [0.0, 2.0], atol=1e-3)
