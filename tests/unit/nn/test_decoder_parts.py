"""Parts of OPT, GPT-Neo, GPT-J and BLOOM against their formulas, and against plain parts."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.nn import Block, FeedForward, Keys, LayerNorm, MultiHeadAttention, Residual, Stack
from jaxformer.nn.embedding import Embedding
from jaxformer.nn.positions import rotary_positions
from jaxformer.nn.stack import unstack_layers

from .weights import normal, random_params

X = normal(2, 7, 8)  # [B, T, D]
WINDOWS = (None, 2, 0)


def make_block(**options):
    make_residual = functools.partial(Residual, "pre")
    attention = MultiHeadAttention(num_heads=2, use_bias="output")
    return Block(attention, FeedForward(12), make_residual=make_residual, **options)


def test_only_the_first_entries_may_be_rotated():
    heads = normal(2, 5, 3, 8)  # [B, T, H, K]
    positions = np.arange(5)[None]

    found = jax.jit(functools.partial(rotary_positions, size=4))(heads, positions)

    rotated = jax.jit(rotary_positions)(heads[..., :4], positions)
    np.testing.assert_array_equal(found[..., :4], rotated)
    np.testing.assert_array_equal(found[..., 4:], heads[..., 4:])


def test_biases_of_the_output_only():
    """They are added to the result of an attention without biases."""
    layer = MultiHeadAttention(num_heads=2, use_bias="output")
    params = random_params(layer, X)
    assert [name for name in params if name.endswith("bias")] == ["output_bias"]

    found = jax.jit(layer.apply)({"params": params}, X)

    plain = {name: value for name, value in params.items() if name != "output_bias"}
    without = jax.jit(MultiHeadAttention(num_heads=2).apply)({"params": plain}, X)
    np.testing.assert_allclose(found, without + params["output_bias"], atol=1e-6)


def test_a_parallel_block_is_the_sum_of_its_parts():
    block = make_block(is_parallel=True)
    params = random_params(block, X)
    assert params.keys() == {"self_attention", "feed_forward", "self_attention_residual"}

    found = jax.jit(block.apply)({"params": params}, X)

    @jax.jit
    def expected(params):
        norm = {"params": params["self_attention_residual"]["norm"]}
        normalized = LayerNorm().apply(norm, X)
        attention = {"params": params["self_attention"]}
        network = {"params": params["feed_forward"]}
        attended = block.self_attention.apply(attention, normalized)
        return X + attended + block.feed_forward.apply(network, normalized)

    np.testing.assert_allclose(found, expected(params), rtol=1e-5, atol=1e-6)


def test_a_parallel_block_has_no_cross_attention():
    block = make_block(is_parallel=True, cross_attention=MultiHeadAttention(num_heads=2))
    with pytest.raises(UserError, match="Block: expected no cross_attention with is_parallel"):
        random_params(block, X)


@pytest.mark.parametrize("unstacked", [False, True])
@pytest.mark.parametrize("remat", ["none", "layer"])
def test_windows_of_a_stack_are_those_of_its_layers(unstacked, remat):
    """Three windows for five layers, so that they repeat."""
    stack = Stack(make_block(), 5, final_norm=LayerNorm, window=WINDOWS, remat=remat)
    params = random_params(stack, X)
    keys = Keys.of_sequence(7, causal=True)

    layers = unstack_layers(params["layers"], 5)
    given = {**params, "layers": layers} if unstacked else params
    found = jax.jit(stack.apply)({"params": given}, X, keys)

    @jax.jit
    def one_by_one(params):
        x = X
        for number, own in enumerate(layers):
            window = WINDOWS[number % len(WINDOWS)]
            seen = dataclasses.replace(keys, window=window)
            x = make_block().apply({"params": own}, x, seen)
        return LayerNorm().apply({"params": params["norm"]}, x)

    np.testing.assert_allclose(found, one_by_one(params), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("windows", "kept"),
    [
        ((None, 2), 32),  # all 24 tokens, rounded up to a multiple of 16
        ((3, 1), 16),
    ],
)
def test_a_cache_keeps_what_the_widest_window_sees(windows, kept):
    stack = Stack(make_block(), 2, final_norm=LayerNorm, window=windows)
    variables = {"params": random_params(stack, X)}
    rows = normal(2, 24, 8)  # more than 16 tokens

    @jax.jit
    def cached(variables):
        cache = stack.apply(
            variables,
            np.zeros(2, np.int32),
            d_model=8,
            dtype="float32",
            num_beams=1,
            capacity=24,
            method="init_cache",
        )
        assert cache.slots.capacity == kept

        prefill = functools.partial(stack.apply, variables, method="prefill")
        step = functools.partial(stack.apply, variables, method="step")
        prompt, cache = prefill(rows[:, :5], cache, length=5)
        outputs = [prompt]
        for token in np.split(rows[:, 5:], 19, axis=1):  # [B, 1, D]
            y, cache = step(token, cache)
            outputs.append(y)
        return jax.numpy.concatenate(outputs, axis=1)

    @jax.jit
    def whole(variables):
        return stack.apply(variables, rows, Keys.of_sequence(24, causal=True))

    np.testing.assert_allclose(cached(variables), whole(variables), rtol=1e-4, atol=1e-5)


def test_keys_within_a_distance_have_a_mask():
    keys = Keys.of_sequence(6, segments=np.array([[1, 1, 1, 2, 2, 2]]), causal=True)
    expected = dataclasses.replace(keys, window=1).allowed()

    np.testing.assert_array_equal(keys.within(np.int32(1)).allowed(), expected)
    np.testing.assert_array_equal(keys.within(np.int32(3)).within(np.int32(1)).allowed(), expected)


def test_embeddings_may_be_projected_and_normalized():
    table = normal(5, 3)
    matrix = normal(3, 8, seed=1)
    positions = normal(4, 8, seed=2)

    def norm(x):
        centered = x - x.mean(axis=-1, keepdims=True)
        return centered * (centered**2).mean(axis=-1, keepdims=True) ** -0.5

    embedding = Embedding(
        table,
        encodings=lambda length: positions,
        max_length=4,
        compute_dtype="float32",
        projection=matrix,
        norm=norm,
    )
    tokens = np.array([[4, 0, 2]])
    found = jax.jit(embedding.__call__)(tokens)

    expected = table[tokens] @ matrix * np.sqrt(8) + positions[:3]
    np.testing.assert_allclose(found, norm(expected), rtol=1e-4, atol=1e-5)
