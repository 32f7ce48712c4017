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

from .weights import normal, random_params


def attention_by_formula(queries, keys, values, mask):
    """softmax(Q K^T / sqrt(d_k)) V, one query of one head at a time, in float64."""
    batch, length, heads, d_k = queries.shape
    result = np.zeros((batch, length, heads, values.shape[-1]))

    for b, t, h in np.ndindex(batch, length, heads):
        query = queries[b, t, h]
        keys_of_head = keys[b, :, h].astype(np.float64)  # [S, d_k]
        values_of_head = values[b, :, h]  # [S, d_v]

        scores = keys_of_head @ query / d_k**0.5
        hidden = ~mask[b, t]
        scores[hidden] = -np.inf
        odds = np.exp(scores - scores.max())
        weights = odds / odds.sum()
        result[b, t, h] = weights @ values_of_head

    return result


def random_heads():
    rng = np.random.default_rng(0)
    queries = normal(2, 5, 3, 4, seed=rng)  # [B, T, H, d_k]
    keys = normal(2, 7, 3, 4, seed=rng)  # [B, S, H, d_k]
    values = normal(2, 7, 3, 6, seed=rng)  # [B, S, H, d_v]

    mask = rng.random((2, 5, 7)) < 0.6  # [B, T, S]
    mask[:, :, 0] = True  # Every query sees a key.
    return queries, keys, values, mask


def attend(queries, keys, values, mask):
    compiled = jax.jit(nn.dot_product_attention)
    mask_of_heads = mask[:, None]
    results = compiled(queries, keys, values, mask=mask_of_heads)
    return jax.device_get(results)


def test_equation_1():
    queries, keys, values, mask = random_heads()

    attended, weights = attend(queries, keys, values, mask)

    expected = attention_by_formula(queries, keys, values, mask)
    np.testing.assert_allclose(attended, expected, rtol=1e-5, atol=1e-6)
    sums = np.sum(weights, axis=-1)
    np.testing.assert_allclose(sums, 1.0, rtol=1e-6)

    hidden_keys = ~mask[:, None]
    hidden = np.broadcast_to(hidden_keys, weights.shape)
    assert hidden.any()
    assert (weights[hidden] == 0.0).all()


def test_fully_masked_query_is_finite():
    queries, keys, values, mask = random_heads()
    mask[0, 0] = False

    attended, _ = attend(queries, keys, values, mask)

    assert np.isfinite(attended).all()


def test_fused_kernel_needs_bfloat16_and_even_lengths():
    def heads(length, size, dtype=jnp.bfloat16):
        zeros = np.zeros((2, length, 3, size), dtype)
        return jnp.asarray(zeros)

    def has_fused(queries, values):
        keys = nn.Keys.of_sequence(6)
        return has_fused_kernel(queries, values, keys)

    queries = heads(6, 16)
    values = heads(8, 16)
    # The tests run on a CPU.
    assert not has_fused(queries, values)

    gpu = nn.backend_for("gpu", "9.0")
    with nn.use_backend(gpu):
        assert has_fused(queries, values)

        float32_queries = heads(6, 16, jnp.float32)
        float32_values = heads(8, 16, jnp.float32)
        assert not has_fused(float32_queries, float32_values)

        assert not has_fused(heads(7, 16), values)
        assert not has_fused(queries, heads(7, 16))
        assert not has_fused(heads(6, 12), heads(8, 12))
        assert not has_fused(queries, heads(8, 24))

    older_gpu = nn.backend_for("gpu", "7.5")
    with nn.use_backend(older_gpu):
        assert not has_fused(queries, values)


def test_fused_kernel_takes_no_field_of_keys_that_it_does_not_know():
    new = dataclasses.make_dataclass(
        "New",
        [("sinks", Any, None)],
        bases=(nn.Keys,),
        frozen=True,
    )
    heads = np.zeros((2, 6, 3, 16), jnp.bfloat16)
    segments = np.ones((2, 6), np.int32)
    known = nn.Keys.of_sequence(6, segments, causal=True, window=2)
    keys = new(**vars(known))

    gpu = nn.backend_for("gpu", "9.0")
    with nn.use_backend(gpu):
        assert has_fused_kernel(heads, heads, keys)

        with_sinks = dataclasses.replace(keys, sinks=np.zeros(3))
        assert not has_fused_kernel(heads, heads, with_sinks)

        with_bias = dataclasses.replace(keys, bias=lambda queries, keys: 0)
        assert not has_fused_kernel(heads, heads, with_bias)


def test_fused_kernel_is_dot_product_attention():
    """Values and gradients on packed, causal rows, on GPUs that have the kernel."""
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=(2, 2, 64, 128))
    x, cotangent = jnp.asarray(drawn, jnp.bfloat16)  # each [B, T, D]
    heads = x.reshape(2, 64, 4, 32)
    keys = nn.Keys.of_sequence(64)
    if not has_fused_kernel(heads, heads, keys):
        pytest.skip("needs an NVIDIA GPU, Ampere or newer")

    quarters = [[1, 2, 3, 0], [1, 1, 2, 2]]
    repeated = np.repeat(quarters, 16, axis=1)
    segments = jnp.asarray(repeated)
    is_token = (segments != 0)[..., None]
    mask = nn.segment_mask(segments, segments) & nn.causal_mask(64)
    model = nn.MultiHeadAttention(num_heads=4, compute_dtype="bfloat16")
    params = model.init(jax.random.key(0), x, x, mask)

    def fused(params, x):
        return model.apply(params, x, x, mask) * is_token

    def plain(params, x):
        # Recording the weights disables the kernel.
        attended, _ = model.apply(
            params,
            x,
            x,
            mask,
            mutable=["intermediates"],
        )
        return attended * is_token

    def values_and_gradients(function):
        attended, pull_back = jax.vjp(function, params, x)
        gradients = pull_back(cotangent)
        return jax.tree.leaves((attended, gradients))

    lowered = jax.jit(fused).lower(params, x)
    assert "custom-call" in lowered.as_text(dialect="hlo")

    pairs = zip(values_and_gradients(fused), values_and_gradients(plain), strict=True)
    for by_kernel, by_formula in pairs:
        found = np.asarray(by_kernel, np.float32)
        expected = np.asarray(by_formula, np.float32)
        error = np.linalg.norm(found - expected)
        assert error < 0.01 * np.linalg.norm(expected)


def test_additive_attention_is_that_of_plain_loops():
    queries, keys, values, mask = random_heads()
    vector = normal(3, 4, seed=1)  # [H, d_k]

    compiled = jax.jit(nn.additive_attention)
    results = compiled(
        queries,
        keys,
        values,
        mask=mask[:, None],
        vector=vector,
    )
    attended, weights = jax.device_get(results)

    for b, t, h in np.ndindex(2, 5, 3):
        query = queries[b, t, h]
        hidden = np.tanh(query + keys[b, :, h])  # [S, d_k]
        scores = hidden @ vector[h]
        odds = mask[b, t] * np.exp(scores)
        expected = odds / odds.sum()
        np.testing.assert_allclose(weights[b, h, t], expected, rtol=1e-5, atol=1e-7)

        mean = expected @ values[b, :, h]
        np.testing.assert_allclose(attended[b, t, h], mean, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "sizes",
    [
        {"num_heads": 2},
        {"num_heads": 2, "d_k": 3, "d_v": 5},
    ],
)
def test_multi_head_attention_concatenates_heads(sizes):
    layer = nn.MultiHeadAttention(**sizes)
    rng = np.random.default_rng(1)
    x = normal(2, 3, 8, seed=rng)  # [B, T, D]
    memory = normal(2, 4, 8, seed=rng)  # [B, S, D]
    mask = np.ones((2, 1, 3, 4), bool)
    p = random_params(layer, x, memory, mask)

    apply = jax.jit(layer.apply)
    found = apply({"params": p}, x, memory, mask)

    queries = np.einsum("btd,dhk->bthk", x, p["query"])
    keys = np.einsum("bsd,dhk->bshk", memory, p["key"])
    values = np.einsum("bsd,dhv->bshv", memory, p["value"])
    heads = attention_by_formula(queries, keys, values, mask[:, 0])  # [B, T, H, d_v]

    num_heads = heads.shape[2]
    of_each = [heads[:, :, h] for h in range(num_heads)]
    concatenated = np.concatenate(of_each, -1)
    expected = concatenated @ p["output"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_positions_are_encoded_into_queries_and_keys():
    """With rotary positions, scores depend only on differences of positions."""
    layer = nn.MultiHeadAttention(num_heads=2, encode_positions=rotary_positions)
    x = normal(1, 5, 8)
    params = random_params(layer, x)
    variables = {"params": params}
    positions = np.arange(5)[None]

    @jax.jit
    def run(variables, x, positions):
        without = nn.MultiHeadAttention(num_heads=2)
        plain = without.apply(variables, x)
        default = layer.apply(variables, x)
        given = layer.apply(variables, x, positions=positions)
        return plain, default, given

    results = run(variables, x, positions + 100)
    plain, default, shifted = jax.device_get(results)
    np.testing.assert_allclose(shifted, default, rtol=1e-4, atol=1e-5)
    difference = np.abs(default - plain)
    assert difference.max() > 0.01

    reversed_x = x[:, ::-1]
    reversed_positions = positions[:, ::-1]
    results = run(variables, reversed_x, reversed_positions)
    _, _, backward = jax.device_get(results)
    np.testing.assert_allclose(backward[:, ::-1], default, rtol=1e-4, atol=1e-5)
