"""Layer norm, feed-forward network and residual order against their formulas in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.nn import FeedForward, LayerNorm, Residual


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
