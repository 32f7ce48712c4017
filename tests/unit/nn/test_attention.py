"""Attention against a float64 NumPy implementation of the formula."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import nn
from jaxformer.nn.kernels import has_fused_kernel
from jaxformer.nn.positions import rotary_positions

from .weights import random_params


def attention_by_formula(queries, keys, values, mask):
    """softmax(Q K^T / sqrt(d_k)) V, one query of one head at a time, in float64."""
    batch, length, heads, d_k = queries.shape
    result = np.zeros((batch, length, heads, values.shape[-1]))
    for b, t, h in np.ndindex(batch, length, heads):
        scores = keys[b, :, h].astype(np.float64) @ queries[b, t, h] / d_k**0.5
        scores[~mask[b, t]] = -np.inf
        weights = np.exp(scores - scores.max())
        result[b, t, h] = weights / weights.sum() @ values[b, :, h]
    return result


def random_heads():
    rng = np.random.default_rng(0)
    shapes = (2, 5, 3, 4), (2, 7, 3, 4), (2, 7, 3, 6)
    queries, keys, values = (rng.normal(size=s).astype(np.float32) for s in shapes)
    mask = rng.random((2, 5, 7)) < 0.6
    mask[:, :, 0] = True
    return queries, keys, values, mask


def attend(queries, keys, values, mask):
    return jax.device_get(jax.jit(nn.dot_product_attention)(queries, keys, values, mask[:, None]))


def test_equation_1():
    queries, keys, values, mask = random_heads()
    attended, weights = attend(queries, keys, values, mask)
    expected = attention_by_formula(queries, keys, values, mask)
    np.testing.assert_allclose(attended, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.sum(weights, axis=-1), 1.0, rtol=1e-6)
    hidden = np.broadcast_to(~mask[:, None], weights.shape)
    assert hidden.any()
    assert (weights[hidden] == 0.0).all()


def test_fully_masked_query_is_finite():
    queries, keys, values, mask = random_heads()
    mask[0, 0] = False
    attended, _ = attend(queries, keys, values, mask)
    assert np.isfinite(attended).all()


def test_fused_kernel_needs_bfloat16_and_even_lengths():
    def heads(length, size, dtype=jnp.bfloat16):
        return jnp.asarray(np.zeros((2, length, 3, size), dtype))

    def has_fused(queries, values):
        return has_fused_kernel(queries, values, nn.Keys.of_sequence(6))

    assert not has_fused(heads(6, 16), heads(6, 16))  # The tests run on a CPU.
    with nn.use_backend(nn.backend_for("gpu", "9.0")):
        assert has_fused(heads(6, 16), heads(8, 16))
        assert not has_fused(heads(6, 16, jnp.float32), heads(8, 16, jnp.float32))
        for queries, keys in [((7, 16), (8, 16)), ((6, 16), (7, 16)), ((6, 12), (8, 12))]:
            assert not has_fused(heads(*queries), heads(*keys))
        assert not has_fused(heads(6, 16), heads(8, 24))
    with nn.use_backend(nn.backend_for("gpu", "7.5")):  # An older GPU.
        assert not has_fused(heads(6, 16), heads(8, 16))


def test_fused_kernel_takes_no_field_of_keys_that_it_does_not_know():
    new = dataclasses.make_dataclass("New", [("sinks", Any, None)], bases=(nn.Keys,), frozen=True)
    heads = np.zeros((2, 6, 3, 16), jnp.bfloat16)
    keys = new(**vars(nn.Keys.of_sequence(6, np.ones((2, 6), np.int32), causal=True, window=2)))
    with nn.use_backend(nn.backend_for("gpu", "9.0")):
        assert has_fused_kernel(heads, heads, keys)
        for field in ({"sinks": np.zeros(3)}, {"bias": lambda queries, keys: 0}):
            assert not has_fused_kernel(heads, heads, dataclasses.replace(keys, **field))


def test_fused_kernel_is_dot_product_attention():
    """Values and gradients on packed, causal rows, on GPUs that have the kernel."""
    rng = np.random.default_rng(0)
    x, cotangent = jnp.asarray(rng.normal(size=(2, 2, 64, 128)), jnp.bfloat16)
    heads = x.reshape(2, 64, 4, 32)
    if not has_fused_kernel(heads, heads, nn.Keys.of_sequence(64)):
        pytest.skip("needs an NVIDIA GPU, Ampere or newer")
    segments = jnp.asarray(np.repeat([[1, 2, 3, 0], [1, 1, 2, 2]], 16, axis=1))
    mask = nn.segment_mask(segments, segments) & nn.causal_mask(64)
    model = nn.MultiHeadAttention(num_heads=4, compute_dtype="bfloat16")
    params = model.init(jax.random.key(0), x, x, mask)

    def fused(params, x):
        return model.apply(params, x, x, mask) * (segments != 0)[..., None]

    def plain(params, x):  # Recording the weights disables the kernel.
        attended, _ = model.apply(params, x, x, mask, mutable=["intermediates"])
        return attended * (segments != 0)[..., None]

    assert "custom-call" in jax.jit(fused).lower(params, x).as_text(dialect="hlo")
    results = []
    for function in (fused, plain):
        attended, pull_back = jax.vjp(function, params, x)
        results.append(jax.tree.leaves((attended, pull_back(cotangent))))
    for ours, expected in zip(*results, strict=True):
        ours, expected = np.asarray(ours, np.float32), np.asarray(expected, np.float32)
        assert np.linalg.norm(ours - expected) < 0.01 * np.linalg.norm(expected)


def test_additive_attention_is_that_of_plain_loops():
    queries, keys, values, mask = random_heads()
    vector = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
    attended, weights = jax.device_get(
        jax.jit(nn.additive_attention)(queries, keys, values, mask[:, None], vector)
    )
    for b, t, h in np.ndindex(2, 5, 3):
        odds = mask[b, t] * np.exp(np.tanh(queries[b, t, h] + keys[b, :, h]) @ vector[h])
        expected = odds / odds.sum()
        np.testing.assert_allclose(weights[b, h, t], expected, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(
            attended[b, t, h], expected @ values[b, :, h], rtol=1e-4, atol=1e-6
        )


@pytest.mark.parametrize("sizes", [{"num_heads": 2}, {"num_heads": 2, "d_k": 3, "d_v": 5}])
def test_multi_head_attention_concatenates_heads(sizes):
    layer = nn.MultiHeadAttention(**sizes)
    rng = np.random.default_rng(1)
    x, memory = (rng.normal(size=(2, n, 8)).astype(np.float32) for n in (3, 4))
    mask = np.ones((2, 1, 3, 4), bool)
    p = random_params(layer, x, memory, mask)
    heads = attention_by_formula(
        np.einsum("btd,dhk->bthk", x, p["query"]),
        np.einsum("bsd,dhk->bshk", memory, p["key"]),
        np.einsum("bsd,dhv->bshv", memory, p["value"]),
        mask[:, 0],
    )
    expected = np.concatenate([heads[:, :, h] for h in range(heads.shape[2])], -1) @ p["output"]
    actual = jax.jit(layer.apply)({"params": p}, x, memory, mask)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_positions_are_encoded_into_queries_and_keys():
    """With rotary positions, scores depend only on differences of positions."""
    layer = nn.MultiHeadAttention(num_heads=2, encode_positions=rotary_positions)
    x = np.random.default_rng(0).normal(size=(1, 5, 8)).astype(np.float32)
    variables, positions = {"params": random_params(layer, x)}, np.arange(5)[None]

    @jax.jit
    def run(variables, x, positions):
        plain = nn.MultiHeadAttention(num_heads=2).apply(variables, x)
        default = layer.apply(variables, x)
        return plain, default, layer.apply(variables, x, positions=positions)

    plain, default, shifted = jax.device_get(run(variables, x, positions + 100))
    np.testing.assert_allclose(shifted, default, rtol=1e-4, atol=1e-5)
    assert np.abs(default - plain).max() > 0.01
    *_, backward = jax.device_get(run(variables, x[:, ::-1], positions[:, ::-1]))
    np.testing.assert_allclose(backward[:, ::-1], default, rtol=1e-4, atol=1e-5)
