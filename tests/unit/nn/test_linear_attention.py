"""Linear attention against its formula, softmax attention, and cached decoding."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import UserError, beam_search
from jaxformer.nn import Block, FeedForward, Keys, MultiHeadAttention, Stack, rotary_positions
from jaxformer.nn.linear_attention import LinearAttention, elu_features, random_features

from .weights import normal, random_params

# Longer than two chunks, and no multiple of one.
X = normal(2, 150, 8)  # [B, T, D]
FEW = functools.partial(random_features, num_features=16)


def quadratic(params, feature_map, causal):
    """The definition: weights of all pairs of tokens, normalized, in float64."""

    def heads_of(name):
        return np.einsum("btd,dhk->bhtk", X, params[name])

    @jax.jit
    def features(q, k):
        of_queries = feature_map(q, True)
        of_keys = feature_map(k, False)
        return of_queries, of_keys

    q, k = features(heads_of("query"), heads_of("key"))  # [B, H, T, R]
    q = np.asarray(q, np.float64)
    k = np.asarray(k, np.float64)

    weights = np.einsum("bhtr,bhsr->bhts", q, k)
    if causal:
        weights = np.tril(weights)
    weights = weights / weights.sum(-1, keepdims=True)

    heads = weights @ heads_of("value")  # [B, H, T, V]
    by_position = np.moveaxis(heads, 1, 2)
    batch, length, _ = X.shape
    concatenated = by_position.reshape(batch, length, -1)
    return concatenated @ params["output"]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("feature_map", [elu_features, FEW], ids=["elu", "random"])
def test_it_equals_the_quadratic_formula(feature_map, causal):
    layer = LinearAttention(num_heads=2, d_k=6, feature_map=feature_map)
    params = random_params(layer, X)
    keys = Keys.of_sequence(150, causal=causal)

    attend = functools.partial(layer.apply, method="attend")
    found, _ = jax.jit(attend)({"params": params}, X, keys)

    expected = quadratic(params, feature_map, causal)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_random_features_estimate_the_weights_of_softmax_attention():
    q, k = 0.7 * normal(2, 5, 4, seed=1)
    compiled = jax.jit(random_features, static_argnums=(1, 2))

    def features(x, is_query, num_features):
        found = compiled(x, is_query, num_features)
        return np.asarray(found)

    of_queries = features(q, False, 200_000)
    of_keys = features(k, False, 200_000)
    scores = q @ k.T / math.sqrt(4)
    np.testing.assert_allclose(of_queries @ of_keys.T, np.exp(scores), rtol=0.1)

    # Queries and keys have the same features, except for a factor for each query.
    factors = features(q, True, 64) / features(q, False, 64)
    of_each_query = factors[:, :1]
    np.testing.assert_allclose(factors, of_each_query.repeat(64, 1), rtol=1e-4)


def make_stack(attention):
    block = Block(attention, FeedForward(16))
    return Stack(block, num_layers=2)


STACK = make_stack(
    LinearAttention(
        2,
        feature_map=FEW,
        encode_positions=rotary_positions,
    )
)


def empty_cache(variables, rows, **sizes):
    init = functools.partial(STACK.apply, method="init_cache", **sizes)

    @jax.jit
    def compiled():
        row_ids = jnp.arange(rows)
        return init(variables, row_ids, 8, "float32")

    return compiled()


def test_cached_decoding_equals_the_whole_pass():
    x = X[:, :70]
    variables = {"params": random_params(STACK, x)}
    causal = Keys.of_sequence(70, causal=True)
    whole = jax.jit(STACK.apply)(variables, x, causal)

    prefill = jax.jit(functools.partial(STACK.apply, method="prefill"))
    step = jax.jit(functools.partial(STACK.apply, method="step"))

    # The prompt of 66 tokens has padding on the right.
    cache = empty_cache(variables, 2, num_beams=3, capacity=70)
    y, cache = prefill(variables, x, cache, 66)
    np.testing.assert_allclose(y[:, :66], whole[:, :66], atol=1e-5)

    cache = cache.grow(80)
    for t in range(66, 70):
        newest = slice(t, t + 1)
        beams = x[:, newest].repeat(3, 1)
        y, cache = step(variables, beams, cache)
        expected = whole[:, newest].repeat(3, 1)
        np.testing.assert_allclose(y, expected, atol=1e-5)


def test_beam_search_carries_the_state_of_each_hypothesis():
    table = normal(6, 8, seed=2)
    variables = {"params": random_params(STACK, X[:, :5], scale=0.6)}

    def step(tokens, cache):
        embedded = jnp.asarray(table)[tokens]
        y, cache = STACK.apply(variables, embedded, cache, method="step")
        return y @ table.T, cache

    @jax.jit
    def search(cache):
        return beam_search(
            step,
            cache,
            max_lengths=[8],
            capacity=8,
            beam_size=4,
        )

    cache = empty_cache(variables, 1, num_beams=4, capacity=16)
    found = search(cache)

    # The log probability of each hypothesis, by a pass over all of it, with BOS (2) first.
    tokens = np.asarray(found.tokens[0])  # [N, T]
    lengths = np.asarray(found.lengths[0])
    bos = np.full((4, 1), 2)
    inputs = np.concatenate([bos, tokens[:, :-1]], axis=1)
    causal = Keys.of_sequence(8, causal=True)
    whole = jax.jit(STACK.apply)(variables, table[inputs], causal)
    logits = np.asarray(whole) @ table.T  # [N, T, V]
    totals = np.exp(logits).sum(-1, keepdims=True)
    log_probs = logits - np.log(totals)
    chosen = np.take_along_axis(log_probs, tokens[..., None], 2)[..., 0]

    is_token = np.arange(8) < lengths[:, None]
    expected = (chosen * is_token).sum(1)
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
    stack = make_stack(attention)
    rules = Keys.of_sequence(150, **keys)
    key = jax.random.key(0)
    message = f"LinearAttention: expected no {name}, which only"
    with pytest.raises(UserError, match=message):
        jax.eval_shape(stack.init, key, X, rules)


def test_it_has_the_parameters_of_softmax_attention():
    def shapes(layer):
        params = random_params(layer, X)
        return jax.tree.map(np.shape, params)

    linear = LinearAttention(num_heads=2, use_bias=True)
    softmax = MultiHeadAttention(num_heads=2, use_bias=True)
    assert shapes(linear) == shapes(softmax)
