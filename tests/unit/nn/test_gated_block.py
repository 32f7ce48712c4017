"""Flamingo's resampler and gated blocks against their formulas in NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.nn import Block, FeedForward, Keys, Memory, MultiHeadAttention, Residual, RMSNorm
from jaxformer.nn.gated_block import GatedBlock
from jaxformer.nn.keys import Tokens
from jaxformer.nn.norm import LayerNorm
from jaxformer.nn.resampler import Resampler, ResamplerLayer
from jaxformer.nn.stack import Stack

from .weights import normal, random_params

BATCH = 2
TOKENS = 5
SEEN = 6  # vectors of the memory
X = normal(BATCH, TOKENS, 8, seed=1)
MEMORY = normal(BATCH, SEEN, 12, seed=2)
# The first token sees nothing, the next ones the first half, and the last ones the second half.
VISIBLE = np.zeros((BATCH, TOKENS, SEEN), bool)
VISIBLE[:, 1:3, :3] = True
VISIBLE[:, 3:, 3:] = True
VISIBLE[1, 4] = False


def memory_of(activations=MEMORY, visible=VISIBLE):
    mask = jnp.asarray(visible)[:, None]
    return Memory(activations, Keys(Tokens.of(visible.shape[1]), Tokens.of(SEEN), mask))


def gated_block(gates="vector"):
    return GatedBlock(
        MultiHeadAttention(2, memory_width=12, make_qk_norm=RMSNorm),
        FeedForward(16, "swish", use_bias=False, gated=True),
        gates=gates,
    )


def rms(x, params):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * params["scale"]


def layer_norm(x, params):
    centered = x - x.mean(-1, keepdims=True)
    variance = (centered * centered).mean(-1, keepdims=True)
    return centered / np.sqrt(variance + 1e-6) * params["scale"] + params["bias"]


def softmax(scores):
    exponents = np.exp(scores - scores.max())
    return exponents / exponents.sum()


def attention(x, memory, visible, p, norm):
    """Attends token by token and head by head; a token that sees nothing gets zeros."""
    heads, d_v = p["value"].shape[1:]
    result = np.zeros((*x.shape[:2], p["output"].shape[-1]))
    for row in range(len(x)):
        for token in range(x.shape[1]):
            [places] = np.nonzero(visible[row, token])
            if not len(places):
                continue
            attended = np.zeros((heads, d_v))
            for head in range(heads):
                query = x[row, token] @ p["query"][:, head]
                keys = memory[row, places] @ p["key"][:, head]
                if "query_norm" in p:
                    query = norm(query, p["query_norm"])
                    keys = norm(keys, p["key_norm"])
                weights = softmax(keys @ query / np.sqrt(len(query)))
                attended[head] = weights @ (memory[row, places] @ p["value"][:, head])
            result[row, token] = attended.reshape(-1) @ p["output"]
    return result


def wide(tree):
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


def gated_by_hand(x, memory, visible, params):
    p = wide(params)
    normed = rms(x, p["cross_attention_norm"])
    attended = attention(normed, memory, visible, p["cross_attention"], rms)
    x = x + np.tanh(p["attention_gate"]) * attended

    network = p["feed_forward"]
    normed = rms(x, p["feed_forward_norm"])
    inner = normed @ network["inner"]
    inner = inner / (1 + np.exp(-inner)) * (normed @ network["linear"])
    return x + np.tanh(p["feed_forward_gate"]) * (inner @ network["outer"])


@pytest.mark.parametrize("gates", ["scalar", "vector"])
def test_a_gated_block_is_its_formula(gates):
    block = gated_block(gates)
    params = random_params(block, X, memory_of())
    assert params["attention_gate"].shape == ((8,) if gates == "vector" else ())

    found = jax.jit(block.apply)({"params": params}, X, memory_of())

    expected = gated_by_hand(X, MEMORY, VISIBLE, params)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def closed(params):
    """Returns parameters with gates of 0."""

    def close(path, leaf):
        is_gate = str(path[-1].key).endswith("_gate")
        return np.zeros_like(leaf) if is_gate else leaf

    return jax.tree.map_with_path(close, params)


def test_a_closed_gate_changes_no_bit():
    block = gated_block()
    params = closed(random_params(block, X, memory_of()))

    found = jax.jit(block.apply)({"params": params}, X, memory_of())

    np.testing.assert_array_equal(found, X)


def test_a_resampler_is_its_formula():
    def make_layer():
        attention = MultiHeadAttention(2, d_k=5, d_v=5, make_qk_norm=LayerNorm)
        return ResamplerLayer(attention, FeedForward(20, use_bias=False))

    resampler = Resampler(make_layer, num_layers=2, num_latents=3)
    params = random_params(resampler, MEMORY)

    found = jax.jit(resampler.apply)({"params": params}, MEMORY)

    p = wide(params)
    latents = np.broadcast_to(p["latents"], (BATCH, 3, 12))
    for number in range(2):
        own = jax.tree.map(lambda leaf, n=number: leaf[n], p["stack"]["layers"])
        picture = layer_norm(MEMORY, own["picture_norm"])
        normed = layer_norm(latents, own["latents_norm"])
        both = np.concatenate([picture, normed], axis=1)
        everywhere = np.ones((BATCH, 3, SEEN + 3), bool)
        latents = latents + attention(normed, both, everywhere, own["attention"], layer_norm)

        network = own["feed_forward"]
        inner = layer_norm(latents, own["feed_forward_norm"]) @ network["inner"]
        latents = latents + np.maximum(inner, 0) @ network["outer"]
    expected = layer_norm(latents, p["stack"]["norm"])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


BLOCK = Block(
    MultiHeadAttention(2, dropout_rate=0.3),
    FeedForward(16),
    make_residual=functools.partial(Residual, "pre", 0.2),
)
PLAIN = Stack(BLOCK, num_layers=4, final_norm=LayerNorm)
GATED = PLAIN.clone(gated=gated_block(), gated_every=2)
CAUSAL = Keys.of_sequence(TOKENS, causal=True)


@functools.cache
def params_of_stack():
    return random_params(GATED, X, CAUSAL, memory_of())


@jax.jit
def run_gated(params):
    return GATED.apply({"params": params}, X, CAUSAL, memory_of())


def test_a_stack_has_a_gated_block_before_every_second_layer():
    params = params_of_stack()
    assert params.keys() == {"layers", "gated", "norm"}
    assert params["gated"]["attention_gate"].shape == (2, 8)

    @jax.jit
    def layer(params, x):
        return BLOCK.apply({"params": params}, x, CAUSAL)

    x = X
    for number in range(4):
        if number % 2 == 0:
            gated = jax.tree.map(lambda leaf, n=number // 2: leaf[n], params["gated"])
            x = gated_by_hand(x, MEMORY, VISIBLE, gated).astype(np.float32)
        x = np.asarray(layer(jax.tree.map(lambda leaf, n=number: leaf[n], params["layers"]), x))
    expected = layer_norm(x, params["norm"])
    np.testing.assert_allclose(run_gated(params), expected, rtol=1e-3, atol=1e-3)


def test_a_stack_with_closed_gates_is_the_plain_stack_to_the_bit():
    params = closed(params_of_stack())
    plain = {name: params[name] for name in ("layers", "norm")}

    found = run_gated(params)
    expected = jax.jit(PLAIN.apply)({"params": plain}, X, CAUSAL)

    np.testing.assert_array_equal(found, expected)


def test_decoding_with_gated_blocks_equals_the_whole_pass():
    params = params_of_stack()
    # All tokens after the prompt of three see what its last one sees.
    visible = VISIBLE.copy()
    visible[:, 3:] = visible[:, 2:3]

    @jax.jit
    def whole(params):
        return GATED.apply({"params": params}, X, CAUSAL, memory_of(visible=visible))

    @jax.jit
    def decode(params):
        bound = GATED.bind({"params": params})
        sizes = {"num_beams": 2, "capacity": 8}
        rows = jnp.zeros(BATCH, jnp.int32)
        seen = jnp.asarray(visible[:, 2])
        cache = bound.init_cache(rows, 8, "float32", memory=MEMORY, memory_mask=seen, **sizes)
        first, cache = bound.prefill(X[:, :3], cache, 3, jnp.asarray(visible[:, :3]))
        outputs = [first]
        for token in range(3, TOKENS):
            x = jnp.repeat(X[:, token : token + 1], 2, axis=1)
            y, cache = bound.step(x, cache)
            outputs.append(y[:, 1:])
        return jnp.concatenate(outputs, axis=1)

    np.testing.assert_allclose(decode(params), whole(params), rtol=1e-4, atol=1e-4)


def test_dropout_rematerialization_and_gradients_of_gated_blocks():
    params = params_of_stack()
    rows = np.arange(BATCH)

    @functools.partial(jax.jit, static_argnums=0)
    def gradients(remat, params, key):
        def loss(params):
            stack = GATED.clone(remat=remat)
            rngs = {"dropout": key}
            y = stack.apply({"params": params}, X, CAUSAL, memory_of(), dropout=rows, rngs=rngs)
            return (y * y * MEMORY[:, :TOKENS, :8]).sum()

        return jax.grad(loss)(params)

    key = jax.random.key(3)
    expected = gradients("none", params, key)
    recomputed = gradients("layer", params, key)
    for found, known in zip(jax.tree.leaves(recomputed), jax.tree.leaves(expected), strict=True):
        assert np.abs(known).max() > 0
        np.testing.assert_allclose(found, known, rtol=1e-3, atol=1e-3)

    others = gradients("none", params, jax.random.key(4))
    gate = "attention_gate"
    assert not np.allclose(others["gated"][gate], expected["gated"][gate], rtol=1e-2)


def test_mistakes_are_named():
    def check(message, stack, *inputs):
        with pytest.raises(UserError, match=message):
            jax.eval_shape(functools.partial(stack.init, jax.random.key(0)), *inputs)

    check("gated_every=3 must divide num_layers=4", GATED.clone(gated_every=3), X, CAUSAL)
    check("gated blocks need a memory, got None", GATED, X, CAUSAL)
    check("neither repeats nor windows that differ", GATED.clone(window=(None, 2)), X, CAUSAL)
    check("expected gates to be 'scalar', 'vector', got 'x'", gated_block("x"), X, memory_of())

    attention = MultiHeadAttention(2, memory_width=12)
    check(r"memory of shape \[batch, length, d_model=12\]", attention, X, X)
    check(r"x of shape \[\.\.\., d_model=12\]", attention, X)
    narrow = MultiHeadAttention(2, memory_width=0)
    check("expected memory_width to be 1 or more", narrow, X, MEMORY)

    layer = ResamplerLayer(MultiHeadAttention(2), FeedForward(4))
    check("expected the activations of a picture as its memory", layer, X, CAUSAL, None)
