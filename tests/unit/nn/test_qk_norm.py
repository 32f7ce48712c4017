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

from .weights import normal, random_params

LENGTH = 6
SIZE = 4
X = normal(2, LENGTH, 8, seed=0)  # [B, T, D]
MEMORY = normal(2, LENGTH, 8, seed=1)  # [B, S, D]
EPSILON = 0.5  # so large that its place in the formula shows
NORM = functools.partial(RMSNorm, EPSILON)


def normalized(heads, scale):
    """Returns x / sqrt(mean(x^2) + epsilon) * scale of each head, the last axis."""
    mean_square = (heads**2).mean(-1, keepdims=True)
    return heads / np.sqrt(mean_square + EPSILON) * scale


def rotated(heads):
    """Returns heads whose pairs of entries (i, i + K/2) are turned by position / 10000^(2i/K)."""
    positions = np.arange(LENGTH)[:, None]
    exponents = np.arange(SIZE // 2) * 2 / SIZE
    angles = positions / 10_000**exponents
    cos = np.cos(angles)[:, None]
    sin = np.sin(angles)[:, None]

    first, second = np.split(heads, 2, axis=-1)
    turned_first = first * cos - second * sin
    turned_second = second * cos + first * sin
    return np.concatenate([turned_first, turned_second], axis=-1)


def heads_of(p, memory):
    """Returns normalized queries and keys, and values, in float64."""
    x = X.astype(np.float64)
    queries = np.einsum("btd,dhk->bthk", x, p["query"])
    keys = np.einsum("bsd,dhk->bshk", memory, p["key"])
    values = np.einsum("bsd,dhk->bshk", memory, p["value"])

    queries = normalized(queries, p["query_norm"]["scale"])
    keys = normalized(keys, p["key_norm"]["scale"])
    return queries, keys, values


def attended(p, queries, keys, values, *, features=None):
    """Returns equation 1, or its causal form with features in place of exp(q . k / sqrt(K))."""
    shared = queries.shape[2] // keys.shape[2]
    keys = keys.repeat(shared, axis=2)
    values = values.repeat(shared, axis=2)

    if features is None:
        scores = np.einsum("bthk,bshk->bhts", queries, keys)
        weights = np.exp(scores / np.sqrt(SIZE))
    else:
        products = np.einsum("bthk,bshk->bhts", features(queries), features(keys))
        weights = np.tril(products)
    weights = weights / weights.sum(-1, keepdims=True)

    heads = np.einsum("bhts,bshv->bthv", weights, values)
    concatenated = heads.reshape(2, LENGTH, -1)
    return concatenated @ p["output"]


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
    for norm in ("query_norm", "key_norm"):
        assert p[norm]["scale"].shape == (SIZE,)

    if memory is None:
        queries, keys, values = heads_of(p, X)
        queries = rotated(queries)
        keys = rotated(keys)
    else:
        queries, keys, values = heads_of(p, memory)
    expected = attended(p, queries, keys, values)

    apply = jax.jit(layer.apply)
    found = apply({"params": p}, X, memory)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_linear_attention_of_normalized_heads():
    layer = LinearAttention(2, make_qk_norm=NORM)
    causal = Keys.of_sequence(LENGTH, causal=True)
    p = random_params(layer, X, causal, method="attend", scale=0.8)

    attend = functools.partial(layer.apply, method="attend")
    found, _ = jax.jit(attend)({"params": p}, X, causal)

    queries, keys, values = heads_of(p, X)
    expected = attended(p, queries, keys, values, features=elu_plus_1)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def elu_plus_1(heads):
    return np.where(heads > 0, heads + 1, np.exp(heads))


@pytest.mark.parametrize("layer", [MultiHeadAttention, LinearAttention])
def test_cached_equals_whole(layer):
    """Also the keys of a memory, which are normalized once for all steps."""
    attention = layer(2, make_qk_norm=NORM, encode_positions=rotary_positions)
    cross = MultiHeadAttention(2, make_qk_norm=NORM)
    block = Block(attention, FeedForward(8), cross)
    stack = Stack(block, 2)
    ones = np.ones((2, LENGTH), np.int32)

    def of_memory(memory):
        keys = Keys.of_memory(ones, ones)
        return Memory(memory, keys)

    causal = Keys.of_sequence(LENGTH, causal=True)
    given = jax.numpy.asarray(MEMORY)
    variables = {"params": random_params(stack, X, causal, of_memory(given))}

    @jax.jit
    def both(variables, x, memory):
        whole = stack.apply(variables, x, causal, of_memory(memory))
        cache = stack.apply(
            variables,
            np.zeros(2, np.int32),
            8,
            "float32",
            num_beams=1,
            capacity=LENGTH,
            memory=memory,
            method="init_cache",
        )

        prompt, cache = stack.apply(
            variables,
            x[:, :3],
            cache,
            3,
            method="prefill",
        )
        outputs = [prompt]
        for token in range(3, LENGTH):
            newest = x[:, token : token + 1]
            output, cache = stack.apply(variables, newest, cache, method="step")
            outputs.append(output)
        return whole, jax.numpy.concatenate(outputs, axis=1)

    whole, cached = both(variables, X, MEMORY)
    np.testing.assert_allclose(cached, whole, rtol=1e-4, atol=1e-5)
