"""Parts of later models against their formulas in NumPy."""

import jax
import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.nn import FeedForward, MultiHeadAttention, RMSNorm

from .weights import random_params

X = np.random.default_rng(0).normal(size=(2, 6, 8)).astype(np.float32)


def softmax(scores):
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def test_rms_norm():
    scale = np.arange(1.0, 9.0, dtype=np.float32)
    found = jax.jit(RMSNorm(1e-3).apply)({"params": {"scale": scale}}, X)
    expected = X / np.sqrt((X.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-3) * scale
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("use_bias", [False, True])
def test_gated_feed_forward_is_swiglu(use_bias):
    layer = FeedForward(16, "swish", use_bias=use_bias, gated=True)
    p = random_params(layer, X)
    assert len(p) == (6 if use_bias else 3)
    inner, linear = (X @ p[n] + p.get(f"{n}_bias", 0) for n in ("inner", "linear"))
    expected = (inner / (1 + np.exp(-inner)) * linear) @ p["outer"] + p.get("outer_bias", 0)
    found = jax.jit(layer.apply)({"params": p}, X)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("rules", [{}, {"scale": 1.0, "soft_cap": 1.5}])
def test_heads_that_share_keys(num_kv_heads, rules):
    layer = MultiHeadAttention(4, d_k=4, d_v=3, num_kv_heads=num_kv_heads, **rules)
    p = random_params(layer, X, scale=0.8)
    assert p["key"].shape == (8, num_kv_heads, 4)
    queries, keys, values = (
        np.einsum("btd,dhk->bthk", X, p[n].astype(np.float64)) for n in ("query", "key", "value")
    )
    keys, values = (np.repeat(a, 4 // num_kv_heads, axis=2) for a in (keys, values))
    scores = np.einsum("bthk,bshk->bhts", queries, keys) * rules.get("scale", 0.5)
    if rules:
        scores = 1.5 * np.tanh(scores / 1.5)
    heads = np.einsum("bhts,bshv->bthv", softmax(scores), values)
    expected = heads.reshape(2, 6, 12) @ p["output"]
    found = jax.jit(layer.apply)({"params": p}, X)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_heads_must_be_divisible():
    with pytest.raises(UserError, match="num_kv_heads=3 must divide num_heads=4"):
        random_params(MultiHeadAttention(4, num_kv_heads=3), X)
