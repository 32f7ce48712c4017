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


def test_other_dropout_rates_are_refused():
    with pytest.raises(UserError, match="Dropout: expected rate to be 0 or more and below 1, got"):
        random_params(MultiHeadAttention(2, dropout_rate=1.0), X)


def test_layers_of_a_stack_differ_at_initialization():
    stack = Stack(Block(MultiHeadAttention(2), FeedForward(16)), num_layers=3)
    params = jax.jit(lambda x: stack.init(jax.random.key(0), x)["params"])(X)
    query = np.asarray(params["layers"]["self_attention"]["query"])
    assert query.shape == (3, 8, 2, 4)
    assert len({tuple(layer.ravel().tolist()) for layer in query}) == 3


def test_pre_norm_without_a_final_norm_is_named():
    block = Block(
        MultiHeadAttention(2), FeedForward(16), make_residual=functools.partial(Residual, "pre")
    )
    with pytest.warns(UserWarning, match="give final_norm=LayerNorm"):
        jax.eval_shape(Stack(block, num_layers=2).init, jax.random.key(0), X)
    stack = Stack(block, num_layers=2, final_norm=LayerNorm)
    assert set(jax.eval_shape(stack.init, jax.random.key(0), X)["params"]) == {"layers", "norm"}


NORM = {"params": {"norm": {"scale": np.ones(8), "bias": np.zeros(8)}}}


class Partitioned(nn.Module):
    wrap: Callable = nn.with_partitioning

    @nn.compact
    def __call__(self, x):
        initializer = self.wrap(nn.initializers.lecun_normal(), (None, "d_ff"))
        return x @ self.param("kernel", initializer, (8, 8))


@pytest.mark.parametrize(
    ("wrap", "remat"), [(nn.with_partitioning, "none"), (nn.with_logical_partitioning, "layer")]
)
def test_a_stack_of_partitioned_layers_equals_its_blocks(wrap, remat):
    block = Block(MultiHeadAttention(2), Partitioned(wrap))
    stack = Stack(block, 2, remat=remat)

    def blocks(params, x):
        for layer in unstack_layers(params, 2):
            x = block.apply({"params": layer}, x)
        return x

    variables = jax.jit(stack.init)(jax.random.key(0), X)
    layers = variables["params"]["layers"]
    assert layers["feed_forward"]["kernel"].names == (None, None, "d_ff")
    expected = jax.jit(blocks)(layers, X)
    np.testing.assert_allclose(jax.jit(stack.apply)(variables, X), expected, rtol=1e-5, atol=1e-5)


def test_all_layers_of_a_decoding_step_share_one_trace():
    traced = []

    class Traced(nn.Module):
        def __call__(self, x):
            traced.append(x)
            return x

    stack, x = Stack(Block(MultiHeadAttention(2), Traced()), num_layers=3), X[:, :1]
    variables = jax.eval_shape(stack.init, jax.random.key(0), x)
    sizes = {"num_beams": 1, "capacity": 4, "method": "init_cache"}
    init = functools.partial(stack.apply, **sizes)
    cache = jax.eval_shape(lambda params: init(params, jnp.arange(2), 8, "float32"), variables)
    traced.clear()
    jax.eval_shape(functools.partial(stack.apply, method="step"), variables, x, cache)
    assert len(traced) == 1


@pytest.mark.parametrize(
    ("norm_position", "formula"),
    [("post", lambda x: normalized(x + 3 * x)), ("pre", lambda x: x + 3 * normalized(x))],
)
def test_residual_order(norm_position, formula):
    layer = Residual(norm_position)
    found = jax.jit(lambda x: layer.apply(NORM, x, lambda h: 3 * h))(X)
    np.testing.assert_allclose(found, formula(X), rtol=1e-4, atol=1e-4)


def test_dropout_acts_on_the_sublayer_and_not_on_the_residual():
    @jax.jit
    def run(x):
        rngs = {"dropout": jax.random.key(0)}
        layer = Residual("pre", dropout_rate=0.5)
        return layer.apply(NORM, x, jnp.ones_like, np.arange(2), rngs=rngs)

    np.testing.assert_allclose(np.unique(np.round(run(X) - X, 4)), [0.0, 2.0], atol=1e-3)
