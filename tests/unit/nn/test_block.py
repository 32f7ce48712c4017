"""Layer norm, feed-forward network and residual order against their formulas in NumPy."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jaxformer.errors import UserError
from jaxformer.nn import Block, FeedForward, LayerNorm, MultiHeadAttention, Residual, Stack
from jaxformer.nn.stack import unstack_layers

from .weights import normal, random_params

# Values of any mean and deviation, [B, T, D].
X = 2.0 + 3.0 * normal(2, 5, 8)
FACTORS = normal(8, seed=3)


def normalized(x):
    """(x - mean) / sqrt(variance + 1e-6), in float64."""
    x = np.asarray(x, np.float64)
    mean = x.mean(-1, keepdims=True)
    variance = x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-6)


def test_layer_norm():
    scale = np.arange(1.0, 9.0, dtype=np.float32)
    bias = np.full(8, 0.5, np.float32)
    params = {"scale": scale, "bias": bias}

    apply = jax.jit(LayerNorm().apply)
    found = apply({"params": params}, X)

    expected = normalized(X) * scale + bias
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_layer_norm_statistics_are_float32_for_bfloat16():
    # Near 256, consecutive bfloat16 numbers differ by 2, so statistics in bfloat16 would fail.
    values = [256.0, 258.0, 260.0, 262.0] * 2
    x = np.array([values], jnp.bfloat16)
    params = {
        "scale": np.ones(8, np.float32),
        "bias": np.zeros(8, np.float32),
    }

    apply = jax.jit(LayerNorm().apply)
    found = apply({"params": params}, x)

    assert found.dtype == jnp.bfloat16
    wide = np.asarray(found).astype(np.float32)
    expected = normalized(x.astype(np.float32))
    np.testing.assert_allclose(wide, expected, atol=0.01)


def test_feed_forward_is_equation_2():
    layer = FeedForward(16)
    p = random_params(layer, X)

    found = jax.jit(layer.apply)({"params": p}, X)

    linear = X @ p["inner"] + p["inner_bias"]  # [B, T, F]
    inner = np.maximum(0, linear)
    expected = inner @ p["outer"] + p["outer_bias"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_other_dropout_rates_are_refused():
    layer = MultiHeadAttention(2, dropout_rate=1.0)
    with pytest.raises(UserError, match="Dropout: expected rate to be 0 or more and below 1, got"):
        random_params(layer, X)


def test_layers_of_a_stack_differ_at_initialization():
    block = Block(MultiHeadAttention(2), FeedForward(16))
    stack = Stack(block, num_layers=3)

    variables = jax.jit(stack.init)(jax.random.key(0), X)

    layers = variables["params"]["layers"]
    query = np.asarray(layers["self_attention"]["query"])
    assert query.shape == (3, 8, 2, 4)
    different = {tuple(layer.ravel().tolist()) for layer in query}
    assert len(different) == 3


def test_pre_norm_without_a_final_norm_is_named():
    make_residual = functools.partial(Residual, "pre")
    block = Block(MultiHeadAttention(2), FeedForward(16), make_residual=make_residual)

    without = Stack(block, num_layers=2)
    with pytest.warns(UserWarning, match="give final_norm=LayerNorm"):
        jax.eval_shape(without.init, jax.random.key(0), X)

    stack = Stack(block, num_layers=2, final_norm=LayerNorm)
    variables = jax.eval_shape(stack.init, jax.random.key(0), X)
    assert set(variables["params"]) == {"layers", "norm"}


NORM = {
    "params": {
        "norm": {"scale": np.ones(8), "bias": np.zeros(8)},
    }
}


class Partitioned(nn.Module):
    wrap: Callable = nn.with_partitioning

    @nn.compact
    def __call__(self, x):
        plain = nn.initializers.lecun_normal()
        initializer = self.wrap(plain, (None, "d_ff"))
        kernel = self.param("kernel", initializer, (8, 8))
        return x @ kernel


@pytest.mark.parametrize(
    ("wrap", "remat"),
    [
        (nn.with_partitioning, "none"),
        (nn.with_logical_partitioning, "layer"),
    ],
)
def test_a_stack_of_partitioned_layers_equals_its_blocks(wrap, remat):
    block = Block(MultiHeadAttention(2), Partitioned(wrap))
    stack = Stack(block, 2, remat=remat)

    def blocks(params, x):
        for layer in unstack_layers(params, 2):
            x = block.apply({"params": layer}, x)
        return x

    variables = jax.jit(stack.init)(jax.random.key(0), X)
    found = jax.jit(stack.apply)(variables, X)

    layers = variables["params"]["layers"]
    assert layers["feed_forward"]["kernel"].names == (None, None, "d_ff")
    expected = jax.jit(blocks)(layers, X)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_all_layers_of_a_decoding_step_share_one_trace():
    traced = []

    class Traced(nn.Module):
        def __call__(self, x):
            traced.append(x)
            return x

    block = Block(MultiHeadAttention(2), Traced())
    stack = Stack(block, num_layers=3)
    token = X[:, :1]
    variables = jax.eval_shape(stack.init, jax.random.key(0), token)

    def init_cache(variables):
        return stack.apply(
            variables,
            jnp.arange(2),
            8,
            "float32",
            num_beams=1,
            capacity=4,
            method="init_cache",
        )

    cache = jax.eval_shape(init_cache, variables)
    traced.clear()

    step = functools.partial(stack.apply, method="step")
    jax.eval_shape(step, variables, token, cache)

    assert len(traced) == 1


@pytest.mark.parametrize(
    ("norm_position", "formula"),
    [
        ("post", lambda x: normalized(x + 3 * x)),
        ("pre", lambda x: x + 3 * normalized(x)),
    ],
)
def test_residual_order(norm_position, formula):
    layer = Residual(norm_position)

    @jax.jit
    def run(x):
        return layer.apply(NORM, x, lambda h: 3 * h)

    np.testing.assert_allclose(run(X), formula(X), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("norm_position", "formula"),
    [
        ("post", lambda x: normalized(x + FACTORS * 3 * x)),
        ("pre", lambda x: x + FACTORS * 3 * normalized(x)),
    ],
)
def test_factors_scale_the_sublayer_and_not_the_residual(norm_position, formula):
    layer = Residual(norm_position, scale=0.1)
    params = {**NORM["params"], "scale": FACTORS}

    @jax.jit
    def run(x):
        return layer.apply({"params": params}, x, lambda h: 3 * h)

    np.testing.assert_allclose(run(X), formula(X), rtol=1e-4, atol=1e-4)

    begun = jax.jit(layer.init, static_argnums=2)(jax.random.key(0), X, jnp.ones_like)
    np.testing.assert_allclose(begun["params"]["scale"], 0.1)


def test_dropout_acts_on_the_sublayer_and_not_on_the_residual():
    layer = Residual("pre", dropout_rate=0.5)

    @jax.jit
    def run(x):
        return layer.apply(
            NORM,
            x,
            jnp.ones_like,
            np.arange(2),
            rngs={"dropout": jax.random.key(0)},
        )

    # The sublayer returns ones: dropped, or doubled.
    of_sublayer = run(X) - X
    different = np.unique(np.round(of_sublayer, 4))
    np.testing.assert_allclose(different, [0.0, 2.0], atol=1e-3)
