"""Parts of later models against their formulas in NumPy, and with a cache."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.nn import Block, FeedForward, Keys, MultiHeadAttention, Residual, RMSNorm, Stack
from jaxformer.nn.positions import rotary_positions

from .weights import normal, random_params

X = normal(2, 6, 8)  # [B, T, D]
ROTARY = functools.partial(rotary_positions, base=500.0)


def softmax(scores):
    odds = np.exp(scores - scores.max(-1, keepdims=True))
    return odds / odds.sum(-1, keepdims=True)


def test_rms_norm():
    scale = np.arange(1.0, 9.0, dtype=np.float32)

    norm = RMSNorm(1e-3)
    found = jax.jit(norm.apply)({"params": {"scale": scale}}, X)

    squares = X.astype(np.float64) ** 2
    mean_square = squares.mean(-1, keepdims=True)
    root = np.sqrt(mean_square + 1e-3)
    np.testing.assert_allclose(found, X / root * scale, rtol=1e-5, atol=1e-6)


def test_rms_norm_may_scale_by_one_plus_the_parameter():
    scale = np.arange(-3.0, 5.0, dtype=np.float32)

    found = jax.jit(RMSNorm(1e-3, unit_offset=True).apply)({"params": {"scale": scale}}, X)

    plain = jax.jit(RMSNorm(1e-3).apply)({"params": {"scale": 1 + scale}}, X)
    np.testing.assert_allclose(found, plain, rtol=1e-6)
    fresh = RMSNorm(unit_offset=True).init(jax.random.key(0), X)["params"]["scale"]
    assert not np.any(fresh)


@pytest.mark.parametrize("use_bias", [False, True])
def test_gated_feed_forward_is_swiglu(use_bias):
    layer = FeedForward(16, "swish", use_bias=use_bias, gated=True)
    p = random_params(layer, X)
    assert len(p) == (6 if use_bias else 3)

    found = jax.jit(layer.apply)({"params": p}, X)

    inner = X @ p["inner"] + p.get("inner_bias", 0)
    linear = X @ p["linear"] + p.get("linear_bias", 0)
    swish = inner / (1 + np.exp(-inner))
    expected = (swish * linear) @ p["outer"] + p.get("outer_bias", 0)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("rules", [{}, {"scale": 1.0, "soft_cap": 1.5}])
def test_heads_that_share_keys(num_kv_heads, rules):
    layer = MultiHeadAttention(
        4,
        d_k=4,
        d_v=3,
        num_kv_heads=num_kv_heads,
        **rules,
    )
    p = random_params(layer, X, scale=0.8)
    assert p["key"].shape == (8, num_kv_heads, 4)

    found = jax.jit(layer.apply)({"params": p}, X)

    def heads_of(name):
        kernel = p[name].astype(np.float64)
        return np.einsum("btd,dhk->bthk", X, kernel)

    shared = 4 // num_kv_heads
    queries = heads_of("query")  # [B, T, 4, K]
    keys = np.repeat(heads_of("key"), shared, axis=2)
    values = np.repeat(heads_of("value"), shared, axis=2)

    # Without rules, the scale is 1 / sqrt(4).
    scale = rules.get("scale", 0.5)
    scores = scale * np.einsum("bthk,bshk->bhts", queries, keys)
    if rules:
        scores = 1.5 * np.tanh(scores / 1.5)
    weights = softmax(scores)
    heads = np.einsum("bhts,bshv->bthv", weights, values)
    expected = heads.reshape(2, 6, 12) @ p["output"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def llama_stack(window=None):
    attention = MultiHeadAttention(
        num_heads=4,
        d_k=4,
        d_v=4,
        num_kv_heads=2,
        encode_positions=ROTARY,
        soft_cap=3.0,
    )
    feed_forward = FeedForward(16, "swish", use_bias=False, gated=True)
    make_residual = functools.partial(Residual, "pre", 0.0, RMSNorm)
    block = Block(attention, feed_forward, make_residual=make_residual)
    return Stack(block, 2, final_norm=RMSNorm, window=window)


@pytest.mark.parametrize(
    ("window", "chunked"),
    [
        (None, False),
        (None, True),
        (1, False),
    ],
)
def test_cached_equals_whole_for_beams(window, chunked, monkeypatch):
    """Also windows that the cache forgets, and queries in chunks."""
    if chunked:
        from jaxformer.nn import backend_for, kernels

        small = dataclasses.replace(backend_for("cpu"), scores_per_chunk=16)
        monkeypatch.setattr(kernels, "backend", lambda: small)

    stack = llama_stack(window)
    variables = {"params": random_params(stack, X)}
    # Three tokens of three beams of each sentence, after the prompt X.
    beams = normal(2, 3, 3, 8, seed=1)  # [B, N, T, D]

    @jax.jit
    def whole(variables, beams):
        prompts = X.repeat(3, axis=0)
        continuations = beams.reshape(6, 3, 8)
        rows = jax.numpy.concatenate([prompts, continuations], axis=1)
        causal = Keys.of_sequence(9, causal=True)
        found = stack.apply(variables, rows, causal)
        return found[:, 6:].reshape(2, 3, 3, 8)

    def init_cache(variables):
        row_ids = np.zeros(2, np.int32)
        return stack.apply(
            variables,
            row_ids,
            8,
            "float32",
            num_beams=3,
            capacity=9,
            method="init_cache",
        )

    @jax.jit
    def cached(variables, beams):
        cache = init_cache(variables)
        self_attention = cache.layers[0]["self_attention"]
        assert self_attention.keys.shape[2] == 2

        _, cache = stack.apply(variables, X, cache, 6, method="prefill")
        outputs = []
        for t in range(3):
            newest = beams[:, :, t]
            y, cache = stack.apply(variables, newest, cache, method="step")
            outputs.append(y)
        return jax.numpy.stack(outputs, axis=2)

    found = cached(variables, beams)
    expected = whole(variables, beams)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_heads_must_be_divisible():
    layer = MultiHeadAttention(4, num_kv_heads=3)
    with pytest.raises(UserError, match="num_kv_heads=3 must divide num_heads=4"):
        random_params(layer, X)
