"""Windows, biases and the ways to compute attention, against masked full attention."""

import dataclasses
import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.config import ModelConfig
from jaxformer.errors import UserError
from jaxformer.models.language_model import LanguageModel
from jaxformer.models.transformer import Transformer
from jaxformer.nn import Keys, backend, use_backend
from jaxformer.nn.dropout import RowDropout
from jaxformer.nn.kernels import KeyValues, attend, chunked_attention, windowed_attention
from jaxformer.nn.positions import BucketedBias, LinearBias

from ...profiles import by_profile
from .weights import normal, random_params

# _relative_position_bucket of transformers 5.24.0 (T5) for 32 buckets and a largest distance of
# 128: offsets, and the bucket of each and of those up to the next.
BOTH_SIDES = {
    -90: 14,
    -63: 13,
    -45: 12,
    -31: 11,
    -22: 10,
    -15: 9,
    -11: 8,
    -7: 7,
    -1: 1,
    0: 0,
    1: 17,
    7: 23,
    8: 24,
    12: 25,
    16: 26,
    23: 27,
    32: 28,
    46: 29,
    64: 30,
    91: 31,
    200: 31,
}
CAUSAL = {
    -200: 31,
    -113: 31,
    -112: 30,
    -98: 29,
    -86: 28,
    -76: 27,
    -66: 26,
    -58: 25,
    -51: 24,
    -45: 23,
    -39: 22,
    -34: 21,
    -30: 20,
    -26: 19,
    -23: 18,
    -20: 17,
    -18: 16,
    -15: 15,
    -1: 1,
    0: 0,
    9: 0,
}


@pytest.mark.parametrize(("causal", "expected"), [(False, BOTH_SIDES), (True, CAUSAL)])
def test_buckets_of_t5(causal, expected):
    bias = BucketedBias(2, causal=causal)
    offsets = np.array(list(expected))

    buckets = jax.jit(bias.buckets)(offsets)

    assert buckets.tolist() == list(expected.values())


def test_rates_of_alibi():
    eight = [2.0**-n for n in range(1, 9)]
    assert LinearBias(8).slopes().tolist() == eight

    # The others are every second slope of 16 heads.
    twelve = eight + [2.0**-n for n in (0.5, 1.5, 2.5, 3.5)]
    np.testing.assert_allclose(LinearBias(12).slopes(), twelve, rtol=1e-12)

    bias = LinearBias(8).bind({})()
    queries = np.array([[0, 5]])
    keys = np.array([[3, 4, 5]])
    of_head_1 = bias(queries, keys)[0, 1]
    # Its slope is 1/4.
    distances = [[3, 4, 5], [2, 1, 0]]
    np.testing.assert_array_equal(of_head_1, -0.25 * np.array(distances))


LENGTH = 21
SEGMENTS = np.array(
    [
        [1] * 12 + [2] * 9,
        [1] * 18 + [0] * 3,
    ],
    np.int32,
)
RNG = np.random.default_rng(0)
# Queries, keys, values and a cotangent, [B, T, H, K].
HEADS = [normal(2, LENGTH, 3, 4, seed=RNG) for _ in range(4)]
BIAS = LinearBias(3).bind({})()


def whole_attention(*arguments):
    attended, _ = attend(*arguments)
    return attended


def by_loops(keys):
    """Returns the mask of the rules, pair by pair."""
    seen = np.zeros((2, 1, LENGTH, LENGTH), bool)

    for b, i, j in np.ndindex(2, LENGTH, LENGTH):
        distance = abs(i - j)
        far = keys.window is not None and distance > keys.window
        is_global = min(i, j) < keys.global_tokens
        near = is_global or not far
        same = SEGMENTS[b, i] == SEGMENTS[b, j] != 0
        alike = keys.queries.segments is None or same
        earlier = not keys.causal or j <= i
        seen[b, 0, i, j] = near and alike and earlier

    return seen


def chunks_of(num_scores):
    """Computes with this backend take queries in chunks of so many scores."""
    return use_backend(dataclasses.replace(backend(), scores_per_chunk=num_scores))


@pytest.mark.parametrize(
    ("way", "segments", "rules"),
    [
        (windowed_attention, None, {"window": 1}),
        (windowed_attention, SEGMENTS, {"window": 4, "causal": True, "bias": BIAS}),
        (windowed_attention, SEGMENTS, {"window": 3, "global_tokens": 2}),
        (windowed_attention, None, {"window": 5, "global_tokens": 1, "causal": True}),
        (chunked_attention, SEGMENTS, {"causal": True, "bias": BIAS}),
        (chunked_attention, None, {"window": 7, "mask": RNG.random((2, 1, LENGTH, LENGTH)) < 0.8}),
    ],
)
def test_values_and_gradients_equal_those_of_masked_full_attention(way, segments, rules):
    keys = Keys.of_sequence(LENGTH, segments, **rules)
    mask = by_loops(keys) & rules.get("mask", True)
    full = dataclasses.replace(
        keys,
        mask=mask,
        causal=False,
        window=None,
        global_tokens=0,
    )
    # Padding may have any value.
    sees = full.mask.any(axis=-1)[:, 0, :, None, None]
    queries, keys_of_heads, values, cotangent = HEADS

    def results(compute, keys):
        def loss(q, k, v):
            attended = compute(q, KeyValues(k, v), keys)
            attended = jnp.where(sees, attended, 0)
            return (attended * cotangent).sum(), attended

        value_and_grad = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)
        return value_and_grad(queries, keys_of_heads, values)

    @jax.jit
    def both():
        with chunks_of(8 * LENGTH * 4):
            return results(way, keys), results(whole_attention, full)

    found, expected = jax.device_get(both())
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(close, found, expected)


@flax.struct.dataclass
class Reach(Keys):
    """Keys with a window of its own for each head."""

    reach: Any = None
    masking = Keys.masking | {"reach"}

    def allowed(self):
        query = self.queries.index[:, None, :, None]
        key = self.keys.index[:, None, None]
        near = abs(query - key) <= self.reach
        return super().allowed() & near


def test_a_window_does_not_split_fields_of_heads():
    """As many heads as blocks, so that a split would go unnoticed."""
    reach = np.int32([0, 1, 3, 6, 2])
    reach = reach[None, :, None, None]
    x = normal(1, 30, 5, 4, seed=RNG)  # [B, T, H, K]
    window = Keys.of_sequence(30, window=6)
    keys = Reach(**vars(window), reach=reach)

    @jax.jit
    def both():
        windowed = windowed_attention(x, KeyValues(x, x), keys)
        return windowed, whole_attention(x, KeyValues(x, x), keys)

    found, expected = both()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_segments_of_keys_alone_hide_padding():
    queries = Keys.of_sequence(2).queries
    padded = Keys.of_sequence(3, np.array([[1, 1, 0]])).keys

    keys = Keys(queries, padded)

    assert keys.allowed()[0, 0].tolist() == [[True, True, False]] * 2


SMALL = ModelConfig(
    vocab_size=23,
    d_model=8,
    d_ff=8,
    num_heads=1,
    num_layers=1,
    max_length=64,
)


def test_a_cache_smaller_than_the_window_forgets_nothing():
    model = LanguageModel(dataclasses.replace(SMALL, window=40))
    tokens = np.full((1, 30), 5, np.int32)
    params = random_params(model, tokens[:, :1])
    variables = {"params": jax.device_put(params)}

    def start():
        return model.apply(variables, tokens, num_beams=1, capacity=16, method="start")

    def prefill():
        return model.apply(variables, tokens, start(), 30, method="prefill")

    with pytest.raises(UserError, match="prompt of 30 tokens: the cache has a capacity of 16"):
        jax.eval_shape(prefill)
    assert not jax.eval_shape(start).slots.is_rolling


def test_a_prompt_sees_a_long_memory_in_chunks():
    model = Transformer(SMALL)
    tokens = RNG.integers(3, 23, (2, 12)).astype(np.int32)
    variables = {"params": jax.device_put(random_params(model, tokens, tokens))}
    apply = functools.partial(model.apply, variables)

    @jax.jit
    def both():
        cache = apply(tokens, num_beams=1, capacity=12, method="start")
        with chunks_of(64):
            features, _ = apply(tokens, cache, 12, method="prefill")
        return apply(features, method="logits"), apply(tokens, tokens)

    found, expected = both()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("way", [whole_attention, windowed_attention, chunked_attention])
def test_dropout_of_parts_keeps_the_mean_and_depends_on_the_row_id(way):
    """All values are 1, so a result is the sum of the weights that dropout kept, scaled."""
    ones = np.ones((3, 64, 4, 8), np.float32)  # [B, T, H, K]
    window = 32 if way is windowed_attention else None
    keys = Keys.of_sequence(64, window=window)

    @jax.jit
    def run(row_ids):
        seeds = np.array([1, 2], np.uint32)
        drop = RowDropout(seeds, row_ids, 0.5)
        with chunks_of(8 * 64 * 16):
            attended = way(ones, KeyValues(ones, ones), keys, drop)
        return attended[..., 0]

    kept = np.asarray(run(np.arange(3)))  # [B, T, H]
    assert kept.mean() == pytest.approx(1.0, abs=0.02)
    if way is not windowed_attention:
        # Binomial: 64 weights, kept with probability 1/2, doubled.
        assert kept.std() == pytest.approx((1 / 64) ** 0.5, rel=0.2)

    # No two parts have one mask.
    parts = kept.reshape(-1, 16, 4)
    assert len(np.unique(parts, axis=0)) == 12

    reordered = run(np.array([2, 0, 1]))
    np.testing.assert_array_equal(reordered, kept[[2, 0, 1]])


KINDS = [
    ("sinusoidal", 5, None),
    ("learned", None, [9, 0]),
    ("relative", 5, [0, 20]),
]
OTHER_KINDS = [
    ("relative", 5, None),
    ("rotary", 5, [3, 0]),
    ("alibi", None, [0, 21]),
]


@pytest.mark.parametrize(
    ("positions", "window", "starts"), by_profile(KINDS, nightly=KINDS + OTHER_KINDS)
)
def test_a_cache_is_that_of_the_full_pass_of_each_row(positions, window, starts):
    """With a window, it keeps 16 positions of 30; beams change their ancestors at every step."""
    config = ModelConfig(
        vocab_size=23,
        d_model=8,
        d_ff=16,
        num_heads=2,
        num_layers=2,
        max_length=64,
        positions=positions,
        window=window,
    )
    model = LanguageModel(config)
    rng = np.random.default_rng(0)
    prompts = rng.integers(3, 23, (2, 1, 22)).astype(np.int32)
    history = np.repeat(prompts, 3, axis=1)  # [B, N, T]
    params = jax.device_put(random_params(model, history[0]))
    apply = functools.partial(model.apply, {"params": params})

    @jax.jit
    def full(tokens):
        return apply(tokens.reshape(6, -1)).reshape(2, 3, -1, 23)

    @jax.jit
    def step(tokens, cache, parents):
        beam_slots = cache.slots.beam_slots
        ancestry = jnp.take_along_axis(beam_slots, parents[..., None], axis=1)
        slots = dataclasses.replace(cache.slots, beam_slots=ancestry)
        return apply(tokens, cache._replace(slots=slots), method="step")

    start = jax.jit(functools.partial(apply, num_beams=3, capacity=30, method="start"))
    prefill = jax.jit(functools.partial(apply, method="prefill"))

    # The prompt is padded by two tokens; each row may have padding before its text, too.
    padded = np.pad(history[:, 0], [(0, 0), (0, 2)])
    given = None if starts is None else np.array(starts, np.int32)
    _, cache = prefill(padded, start(history[:, 0]), 22, given)
    assert cache.slots.beam_slots.shape == (2, 3, 16 if window else 32)

    for _ in range(8):
        parents = rng.integers(0, 3, (2, 3))
        tokens = rng.integers(3, 23, (2, 3)).astype(np.int32)
        history = np.take_along_axis(history, parents[..., None], axis=1)
        history = np.concatenate([history, tokens[..., None]], axis=2)
        logits, cache = step(tokens, cache, parents)

    # The model is causal, so padding may follow a text.
    offsets = starts or [0, 0]
    texts = []
    for row, offset in zip(history, offsets, strict=True):
        texts.append(np.roll(row, -offset, axis=1))
    expected = np.asarray(full(np.stack(texts)))  # [B, N, T, V]
    for row, offset in enumerate(offsets):
        last = expected[row, :, 29 - offset]
        np.testing.assert_allclose(logits[row], last, rtol=1e-4, atol=1e-4)
