"""Each attention layer computes each option as its formula says, or refuses it by name."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.nn import (
    SSRU,
    Block,
    FeedForward,
    Keys,
    LinearAttention,
    Memory,
    MultiHeadAttention,
    Slots,
    Stack,
    backend,
    backend_for,
    use_backend,
)
from jaxformer.nn.kernels import has_fused_kernel
from jaxformer.nn.keys import Tokens
from jaxformer.nn.positions import LinearBias

from ...profiles import CHECKED
from .weights import normal, random_params

LENGTH = 14
HEADS = 2
X = normal(2, LENGTH, 8)  # [B, T, D]
MEMORY = normal(2, LENGTH, 8, seed=1)
SEGMENTS = np.array(
    [
        [1] * 6 + [2] * 8,
        [1] * 12 + [0] * 2,
    ],
    np.int32,
)
POSITIONS = np.arange(LENGTH, dtype=np.int32)[None] * 3
RNG = np.random.default_rng(2)
MASK = RNG.random((2, HEADS, LENGTH, LENGTH)) < 0.7
MASK |= np.eye(LENGTH, dtype=bool)


def shifted(heads, positions):
    """A positional encoding: it adds to queries and keys."""
    return heads + 0.1 * positions[:, :, None, None].astype(heads.dtype)


def bias(queries, keys):
    distances = abs(queries[:, None, :, None] - keys[:, None, None])
    return -0.3 * distances.astype(np.float32)


# Rules of keys, and fields of layers.
RULES = {
    "causal": {"causal": True},
    "segments": {"segments": SEGMENTS},
    "window": {"window": 2},
    "global_tokens": {"window": 2, "global_tokens": 1},
    "mask": {"mask": MASK},
    "bias": {"bias": bias},
    "scale": {"scale": 0.2},
    "soft_cap": {"soft_cap": 0.7},
}
FIELDS = {
    "num_kv_heads": {"num_kv_heads": 1},
    "scale": {"scale": 0.2},
    "soft_cap": {"soft_cap": 0.7},
    "make_bias": {"make_bias": functools.partial(LinearBias, HEADS)},
    "encode_positions": {"encode_positions": shifted},
    "use_bias": {"use_bias": True},
    "dropout_rate": {"dropout_rate": 0.5},
}
SOFTMAX = {"num_kv_heads", "make_bias", "scale", "soft_cap", "dropout_rate"}


def heads_of(p, name, x):
    """Returns queries, keys or values, [B, T, HEADS, K], float64."""
    kernel = p[name].astype(np.float64)
    projected = np.einsum("btd,dhk->bthk", x, kernel)
    projected = projected + p.get(f"{name}_bias", 0)
    repeats = HEADS // projected.shape[2]
    return np.repeat(projected, repeats, axis=2)


def positions_of(rules):
    return rules.get("positions", np.arange(LENGTH)[None])


def visible(rules):
    """The mask of the rules, pair by pair."""
    everything = np.ones((2, 1, LENGTH, LENGTH), bool)
    seen = np.array(rules.get("mask", everything))
    segments = rules.get("segments", np.ones((2, LENGTH)))

    window = rules.get("window", LENGTH)
    global_tokens = rules.get("global_tokens", 0)
    for b, i, j in np.ndindex(2, LENGTH, LENGTH):
        near = abs(i - j) <= window
        near |= min(i, j) < global_tokens
        earlier = j <= i or not rules.get("causal")
        same = segments[b, i] == segments[b, j] != 0
        seen[b, :, i, j] &= near and earlier and same

    return seen


def softmax_attention(p, x, rules, fields):
    """Equation 1 with all options, in float64."""
    q = heads_of(p, "query", x)
    k = heads_of(p, "key", x)
    v = heads_of(p, "value", x)
    positions = positions_of(rules)
    if "encode_positions" in fields:
        q = shifted(q, positions)
        k = shifted(k, positions)

    options = rules | fields
    usual_scale = q.shape[-1] ** -0.5
    scale = options.get("scale", usual_scale)
    scores = np.einsum("bthk,bshk->bhts", q, k) * scale
    cap = options.get("soft_cap")
    if cap:
        scores = cap * np.tanh(scores / cap)

    places = positions[0]
    distances = abs(places[:, None] - places)  # [T, S]
    if "bias" in rules:
        scores = scores - 0.3 * distances
    if "make_bias" in fields:
        slopes = np.array([2.0**-4, 2.0**-8])  # 2^(-8 h / H) for heads 1 and 2
        scores = scores - slopes[:, None, None] * distances

    odds = np.exp(scores) * visible(rules)
    sums = odds.sum(-1, keepdims=True)
    weights = odds / np.maximum(sums, 1e-30)  # Padding sees nothing.
    return output_of(p, weights, v)


def linear_attention(p, x, rules, fields):
    """Features of queries times features of keys, elu(x) + 1, normalized, in float64."""
    q = heads_of(p, "query", x)
    k = heads_of(p, "key", x)
    v = heads_of(p, "value", x)
    if "encode_positions" in fields:
        positions = positions_of(rules)
        q = shifted(q, positions)
        k = shifted(k, positions)

    def features(a):
        return np.where(a > 0, a + 1, np.exp(a))

    products = np.einsum("bthk,bshk->bhts", features(q), features(k))
    odds = products * visible(rules)
    weights = odds / odds.sum(-1, keepdims=True)
    return output_of(p, weights, v)


def output_of(p, weights, v):
    heads = np.einsum("bhts,bshv->bthv", weights, v)
    concatenated = heads.reshape(2, LENGTH, -1)
    return concatenated @ p["output"] + p.get("output_bias", 0)


def recurrence(p, x, rules, fields):
    """Equations of the SSRU, token by token, in float64; segments begin with an empty state."""
    segments = rules.get("segments", np.ones((2, LENGTH)))
    state = np.zeros((2, 8))
    outputs = []

    for t in range(LENGTH):
        new = x[:, t].astype(np.float64)
        gate = new @ p["forget"] + p["forget_bias"]
        kept = 1 / (1 + np.exp(-gate))

        previous = segments[:, max(0, t - 1)]
        begins = segments[:, t] != previous
        state = np.where(begins[:, None], 0, state)
        candidate = new @ p["input"]
        state = kept * state + (1 - kept) * candidate
        outputs.append(np.maximum(state, 0))

    return np.stack(outputs, axis=1)


def keys_of(rules):
    keys = Keys.of_sequence(LENGTH, rules.get("segments"), rules.get("positions"))
    fields = {field.name for field in dataclasses.fields(Keys)}
    others = {name: value for name, value in rules.items() if name in fields}
    return dataclasses.replace(keys, **others)


def found_by(layer, rules, *, chunked=False):
    """Returns the parameters and the output of a layer."""
    keys = keys_of(rules)
    scores_per_chunk = 8 * LENGTH if chunked else 2**22
    settings = dataclasses.replace(backend(), scores_per_chunk=scores_per_chunk)

    with use_backend(settings):
        p = random_params(layer, X, keys, method="attend", scale=0.5)
        attend = functools.partial(layer.apply, method="attend")
        attended, _ = jax.jit(attend)({"params": p}, X, keys)

    return p, np.asarray(attended)


def compare(found, expected, rules):
    # Padding may have any value.
    segments = rules.get("segments", np.ones((2, LENGTH)))
    real = segments != 0
    np.testing.assert_allclose(found[real], expected[real], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_softmax_attention_follows_every_rule(name, chunked):
    """A window, without a mask, selects windowed attention."""
    rules = RULES[name]
    layer = MultiHeadAttention(HEADS)
    p, found = found_by(layer, rules, chunked=chunked)
    expected = softmax_attention(p, X, rules, fields={})
    compare(found, expected, rules)


@pytest.mark.parametrize("name", [name for name in FIELDS if name != "dropout_rate"])
def test_softmax_attention_has_every_field(name):
    rules = {"causal": True, "positions": POSITIONS}
    fields = FIELDS[name]
    layer = MultiHeadAttention(HEADS, **fields)
    p, found = found_by(layer, rules)
    expected = softmax_attention(p, X, rules, fields=fields)
    compare(found, expected, rules)


def test_given_positions_are_positions_of_the_keys_too():
    rules = {"positions": POSITIONS}
    fields = FIELDS["make_bias"]
    layer = MultiHeadAttention(HEADS, **fields)
    p = random_params(layer, X, scale=0.5)

    found = jax.jit(layer.apply)({"params": p}, X, positions=POSITIONS)

    expected = softmax_attention(p, X, rules, fields=fields)
    compare(np.asarray(found), expected, rules)


LAYERS = {
    "LinearAttention": (functools.partial(LinearAttention, HEADS), linear_attention, {"causal"}),
    "SSRU": (SSRU, recurrence, {"causal", "segments"}),
}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("name", RULES)
def test_other_layers_follow_a_rule_or_refuse_it_by_name(layer, name):
    make, formula, supported = LAYERS[layer]
    rules = {"causal": True} | RULES[name]

    if name in supported:
        p, found = found_by(make(), rules)
        expected = formula(p, X, rules, fields={})
        compare(found, expected, rules)
        return

    # Global tokens need a window, which is refused first.
    refused = "window" if name == "global_tokens" else name
    with pytest.raises(UserError, match=f"{layer}: expected no {refused}, which "):
        found_by(make(), rules)


@pytest.mark.parametrize("name", FIELDS)
def test_linear_attention_has_a_field_or_refuses_it_by_name(name):
    rules = {"causal": True, "positions": POSITIONS}
    fields = FIELDS[name]
    layer = LinearAttention(HEADS, **fields)

    if name in SOFTMAX:
        with pytest.raises(UserError, match=f"LinearAttention: expected no {name}, which only a"):
            found_by(layer, rules)
        return

    p, found = found_by(layer, rules)
    expected = linear_attention(p, X, rules, fields=fields)
    compare(found, expected, rules)


SLOTS = Slots.empty(np.zeros(2, np.int32), 1, LENGTH)


def step_keys(**fields):
    return dataclasses.replace(SLOTS, **fields).keys(1)


PADDED = Keys(Tokens.of(LENGTH), Tokens.of(LENGTH, SEGMENTS), causal=True)
CAUSAL = Keys.of_sequence(LENGTH, causal=True)
STEP = step_keys()
PADDED_STEP = step_keys(starts=np.ones((2, 1), np.int32))
SCALED = Keys.of_sequence(LENGTH, scale=1.0)
CACHE = SSRU().init_cache(SLOTS, 8, "float32")
SUMS = LinearAttention(HEADS).init_cache(SLOTS, 8, "float32")
CROSS = Block(MultiHeadAttention(HEADS), FeedForward(8), MultiHeadAttention(HEADS))
ALIBI = FIELDS["make_bias"]
LINEAR = LinearAttention(HEADS)
SOFT = MultiHeadAttention(HEADS)
SCALE_2 = MultiHeadAttention(HEADS, scale=2.0)


@pytest.mark.parametrize(
    ("layer", "arguments", "options", "words"),
    [
        (LINEAR, (PADDED,), {}, "LinearAttention: expected no segments"),
        (LINEAR, (CAUSAL, MEMORY), {}, "LinearAttention: expected no memory"),
        (LINEAR, (CAUSAL,), {"cache": CACHE}, "a cache needs keys of its slots"),
        (LINEAR, (STEP,), {"cache": CACHE}, "expected a .* a LinearCache"),
        (LINEAR, (STEP,), {}, "a cache needs keys of its slots"),
        (LINEAR, (PADDED_STEP,), {"cache": SUMS}, "LinearAttention: expected no segments"),
        (SSRU(), (PADDED,), {}, "SSRU: expected segments of the keys to be"),
        (SSRU(), (CAUSAL, MEMORY), {}, "SSRU: expected no memory"),
        (SSRU(), (CAUSAL,), {"cache": CACHE}, "SSRU: a cache needs keys of its slots"),
        (SSRU(), (STEP,), {}, "SSRU: a cache needs keys of its slots"),
        (
            SOFT,
            (STEP, MEMORY),
            {"cache": CACHE},
            "MultiHeadAttention: expected no memory with a cache",
        ),
        (SCALE_2, (SCALED,), {}, "MultiHeadAttention: got scale=2.0, and keys with 1.0"),
    ],
)
@pytest.mark.skipif(CHECKED, reason="the checks of annotations come first")
def test_arguments_that_a_layer_would_ignore_are_refused(layer, arguments, options, words):
    with pytest.raises(UserError, match=words):
        random_params(layer, X, *arguments, method="attend", **options)


@pytest.mark.parametrize(
    ("stack", "keys", "memory", "words"),
    [
        ({"window": 3}, {"window": 2}, None, "Stack: got window=3, and keys with 2"),
        (ALIBI, {"bias": bias}, None, "Stack: got make_bias, and keys with a bias"),
        ({}, {}, MEMORY, "Block: expected no memory, which needs a cross_attention"),
    ],
)
@pytest.mark.skipif(CHECKED, reason="the checks of annotations come first")
def test_a_stack_refuses_what_it_would_ignore(stack, keys, memory, words):
    block = Block(MultiHeadAttention(HEADS), FeedForward(8))
    layers = Stack(block, 1, **stack)
    rules = Keys.of_sequence(LENGTH, **keys)
    with pytest.raises(UserError, match=words):
        random_params(layers, X, rules, memory)


def test_a_cache_without_a_mask_sees_the_whole_memory():
    stack = Stack(CROSS, 1)
    rows = np.zeros(2, np.int32)
    ones = np.ones((2, LENGTH), np.int32)
    keys = Keys.of_memory(ones, ones)
    memory = Memory(jax.numpy.asarray(MEMORY), keys)
    variables = {"params": random_params(stack, X, None, memory)}

    def init_cache(variables, **memory):
        return stack.apply(
            variables,
            rows,
            8,
            "float32",
            num_beams=1,
            capacity=2,
            **memory,
            method="init_cache",
        )

    @jax.jit
    def outputs(variables, mask):
        cache = init_cache(variables, memory=MEMORY, memory_mask=mask)
        output, _ = stack.apply(variables, X[:, :1], cache, method="step")
        return output

    everything = np.ones((2, LENGTH), bool)
    expected = outputs(variables, everything)
    np.testing.assert_array_equal(outputs(variables, None), expected)

    with pytest.raises(UserError, match="Block: cross-attention needs a memory"):
        init_cache(variables)


def test_the_fused_kernel_is_for_rules_that_it_follows():
    heads = jax.ShapeDtypeStruct((2, LENGTH, HEADS, 8), "bfloat16")
    with use_backend(backend_for("gpu", "9.0")):
        for name, rules in RULES.items():
            follows = name not in ("bias", "soft_cap")
            assert has_fused_kernel(heads, heads, keys_of(rules)) == follows
