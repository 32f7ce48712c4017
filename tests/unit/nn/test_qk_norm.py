"""QK-norm against equation 1 in NumPy: with and without a memory, in linear time, and cached."""

import functools

import jax
import numpy as np
import pytest

from jaxformer.nn import (
    Block,
    FeedForward,
    Keys,
    LinearAttention,
    Memory,
    MultiHeadAttention,
    RMSNorm,
    Stack,
)
from jaxformer.nn.positions import rotary_positions

from .weights import random_params

LENGTH, SIZE = 6, 4
X = np.random.default_rng(0).normal(size=(2, LENGTH, 8)).astype(np.float32)
MEMORY = np.random.default_rng(1).normal(size=(2, LENGTH, 8)).astype(np.float32)
EPSILON = 0.5  # so large that its place in the formula shows
NORM = functools.partial(RMSNorm, EPSILON)


def normalized(heads, scale):
    """Returns x / sqrt(mean(x^2) + epsilon) * scale of each head, the last axis."""
    mean_square = (heads**2).mean(-1, keepdims=True)
    return heads / np.sqrt(mean_square + EPSILON) * scale


def rotated(heads):
    """Returns heads whose pairs of entries (i, i + K/2) are turned by position / 10000^(2i/K)."""
    angles = np.arange(LENGTH)[:, None] / 10_000 ** (np.arange(SIZE // 2) * 2 / SIZE)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    first, second = np.split(heads, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def heads_of(p, memory):
    """Returns normalized queries and keys, and values, in float64."""
    queries = np.einsum("btd,dhk->bthk", X.astype(np.float64), p["query"])
    keys, values = (np.einsum("bsd,dhk->bshk", memory, p[name]) for name in ("key", "value"))
    queries = normalized(queries, p["query_norm"]["scale"])
    keys = normalized(keys, p["key_norm"]["scale"])
    return queries, keys, values


def attended(p, queries, keys, values, *, features=None):
    """Returns equation 1, or its causal form with features in place of exp(q . k / sqrt(K))."""
    shared = queries.shape[2] // keys.shape[2]
    keys, values = keys.repeat(shared, axis=2), values.repeat(shared, axis=2)
    if features is None:
        weights = np.exp(np.einsum("bthk,bshk->bhts", queries, keys) / np.sqrt(SIZE))
    else:
        weights = np.einsum("bthk,bshk->bhts", features(queries), features(keys))
        weights = weights * np.tril(np.ones((LENGTH, LENGTH)))
    weights = weights / weights.sum(-1, keepdims=True)
    heads = np.einsum("bhts,bshv->bthv", weights, values)
    return heads.reshape(2, LENGTH, -1) @ p["output"]


@pytest.mark.parametrize("memory", [None, MEMORY], ids=["self", "memory"])
@pytest.mark.parametrize("num_kv_heads", [2, 4])
def test_equation_1_of_normalized_heads(memory, num_kv_heads):
    """All heads share a scale, and norms come before rotary positions, which a memory has not."""
    layer = MultiHeadAttention(
        4,
        d_k=SIZE,
        d_v=SIZE,
        num_kv_heads=num_kv_heads,
        make_qk_norm=NORM,
        encode_positions=rotary_positions,
    )
    p = random_params(layer, X, scale=0.8)
    assert p["query_norm"]["scale"].shape == p["key_norm"]["scale"].shape == (SIZE,)

    queries, keys, values = heads_of(p, X if memory is None else memory)
    if memory is None:
        queries, keys = rotated(queries), rotated(keys)
    found = jax.jit(layer.apply)({"params": p}, X, memory)
    expected = attended(p, queries, keys, values)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_linear_attention_of_normalized_heads():
    layer = LinearAttention(2, make_qk_norm=NORM)
    causal = Keys.of_sequence(LENGTH, causal=True)
    p = random_params(layer, X, causal, method="attend", scale=0.8)

    found, _ = jax.jit(functools.partial(layer.apply, method="attend"))({"params": p}, X, causal)
    expected = attended(
        p,
        *heads_of(p, X),
        features=lambda heads: np.where(heads > 0, heads + 1, np.exp(heads)),
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer", [MultiHeadAttention, LinearAttention])
def test_cached_equals_whole(layer):
    """Also the keys of a memory, which are normalized once for all steps."""
    make = functools.partial(layer, 2, make_qk_norm=NORM, encode_positions=rotary_positions)
    cross = MultiHeadAttention(2, make_qk_norm=NORM)
    stack = Stack(Block(make(), FeedForward(8), cross), 2)
    ones = np.ones((2, LENGTH), np.int32)

    def of_memory(memory):
        return Memory(memory, Keys.of_memory(ones, ones))

    causal = Keys.of_sequence(LENGTH, causal=True)
    given = jax.numpy.asarray(MEMORY)
    variables = {"params": random_params(stack, X, causal, of_memory(given))}

    @jax.jit
    def both(variables, x, memory):
        whole = stack.apply(variables, x, causal, of_memory(memory))
        sizes = {"num_beams": 1, "capacity": LENGTH, "memory": memory}
        rows = np.zeros(2, np.int32)
        cache = stack.apply(variables, rows, 8, "float32", **sizes, method="init_cache")

        prompt, cache = stack.apply(variables, x[:, :3], cache, 3, method="prefill")
        outputs = [prompt]
        for token in range(3, LENGTH):
            newest = x[:, token : token + 1]
            output, cache = stack.apply(variables, newest, cache, method="step")
            outputs.append(output)
        return whole, jax.numpy.concatenate(outputs, axis=1)

    whole, cached = both(variables, X, MEMORY)
    np.testing.assert_allclose(cached, whole, rtol=1e-4, atol=1e-5)
