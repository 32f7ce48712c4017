"""Linear attention against its formula, softmax attention, and cached decoding."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import UserError, beam_search
from jaxformer.nn import Block, FeedForward, Keys, MultiHeadAttention, Stack, rotary_positions
from jaxformer.nn.linear_attention import LinearAttention, elu_features, random_features

from .weights import random_params

# Longer than two chunks, and no multiple of one.
X = np.random.default_rng(0).normal(size=(2, 150, 8)).astype(np.float32)
FEW = functools.partial(random_features, num_features=16)


def quadratic(params, feature_map, causal):
    """The definition: weights of all pairs of tokens, normalized, in float64."""
    q, k, v = (np.einsum("btd,dhk->bhtk", X, params[name]) for name in ("query", "key", "value"))
    features = jax.jit(lambda q, k: (feature_map(q, True), feature_map(k, False)))
    q, k = (np.asarray(a, np.float64) for a in features(q, k))
    weights = np.einsum("bhtr,bhsr->bhts", q, k)
    weights = np.tril(weights) if causal else weights
    heads = weights / weights.sum(-1, keepdims=True) @ v
    return np.moveaxis(heads, 1, 2).reshape(*X.shape[:2], -1) @ params["output"]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("feature_map", [elu_features, FEW], ids=["elu", "random"])
def test_it_equals_the_quadratic_formula(feature_map, causal):
    layer = LinearAttention(num_heads=2, d_k=6, feature_map=feature_map)
    params, keys = random_params(layer, X), Keys.of_sequence(150, causal=causal)
    found, _ = jax.jit(functools.partial(layer.apply, method="attend"))({"params": params}, X, keys)
    np.testing.assert_allclose(found, quadratic(params, feature_map, causal), rtol=1e-3, atol=1e-4)


def test_random_features_estimate_the_weights_of_softmax_attention():
    q, k = 0.7 * np.random.default_rng(1).normal(size=(2, 5, 4)).astype(np.float32)
    features = jax.jit(random_features, static_argnums=(1, 2))
    found = np.asarray(features(q, False, 200_000)) @ np.asarray(features(k, False, 200_000)).T
    np.testing.assert_allclose(found, np.exp(q @ k.T / 2), rtol=0.1)
    scaled = np.asarray(features(q, True, 64)) / np.asarray(features(q, False, 64))
    np.testing.assert_allclose(scaled, scaled[:, :1].repeat(64, 1), rtol=1e-4)


def make_stack(attention):
    return Stack(Block(attention, FeedForward(16)), num_layers=2)


STACK = make_stack(LinearAttention(2, feature_map=FEW, encode_positions=rotary_positions))


def empty_cache(variables, rows, **sizes):
    init = functools.partial(STACK.apply, method="init_cache", **sizes)
    return jax.jit(lambda: init(variables, jnp.arange(rows), 8, "float32"))()


def test_cached_decoding_equals_the_whole_pass():
    x = X[:, :70]
    variables = {"params": random_params(STACK, x)}
    whole = jax.jit(STACK.apply)(variables, x, Keys.of_sequence(70, causal=True))
    cache = empty_cache(variables, 2, num_beams=3, capacity=70)
    prefill = jax.jit(functools.partial(STACK.apply, method="prefill"))
    y, cache = prefill(variables, x, cache, 66)  # of a prompt with padding on the right
    np.testing.assert_allclose(y[:, :66], whole[:, :66], atol=1e-5)
    step = jax.jit(functools.partial(STACK.apply, method="step"))
    cache = cache.grow(80)
    for t in range(66, 70):
        y, cache = step(variables, x[:, t : t + 1].repeat(3, 1), cache)
        np.testing.assert_allclose(y, whole[:, t : t + 1].repeat(3, 1), atol=1e-5)


def test_beam_search_carries_the_state_of_each_hypothesis():
    table = np.random.default_rng(2).normal(size=(6, 8)).astype(np.float32)
    variables = {"params": random_params(STACK, X[:, :5], scale=0.6)}

    def step(tokens, cache):
        y, cache = STACK.apply(variables, jnp.asarray(table)[tokens], cache, method="step")
        return y @ table.T, cache

    cache = empty_cache(variables, 1, num_beams=4, capacity=16)
    search = jax.jit(lambda c: beam_search(step, c, max_lengths=[8], capacity=8, beam_size=4))
    found = search(cache)
    tokens, lengths = np.asarray(found.tokens[0]), np.asarray(found.lengths[0])
    inputs = np.concatenate([np.full((4, 1), 2), tokens[:, :-1]], axis=1)  # BOS first
    whole = jax.jit(STACK.apply)(variables, table[inputs], Keys.of_sequence(8, causal=True))
    logits = np.asarray(whole) @ table.T
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    chosen = np.take_along_axis(logits, tokens[..., None], 2)[..., 0]
    expected = (chosen * (np.arange(8) < lengths[:, None])).sum(1)
    np.testing.assert_allclose(found.log_probs[0], expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("attention", "keys", "name"),
    [
        (LinearAttention(2, dropout_rate=0.1), {}, "dropout_rate"),
        (LinearAttention(2, soft_cap=5.0), {}, "soft_cap"),
        (LinearAttention(2), {"segments": np.ones((2, 150), np.int32)}, "segments"),
        (LinearAttention(2), {"window": 4}, "window"),
    ],
)
def test_rules_of_a_softmax_are_refused(attention, keys, name):
    stack, keys = make_stack(attention), Keys.of_sequence(150, **keys)
    with pytest.raises(UserError, match=f"LinearAttention: expected no {name}, which only"):
        jax.eval_shape(stack.init, jax.random.key(0), X, keys)


def test_it_has_the_parameters_of_softmax_attention():
    shapes = (
        jax.tree.map(np.shape, random_params(make(num_heads=2, use_bias=True), X))
        for make in (LinearAttention, MultiHeadAttention)
    )
    assert len(set(map(str, shapes))) == 1
