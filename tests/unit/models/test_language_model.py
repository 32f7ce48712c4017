"""The language model: parameter counts, causality, dropout, and decoding with a cache."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.config import ModelConfig
from jaxformer.errors import UserError
from jaxformer.inference.weights import prepare_params
from jaxformer.models.language_model import LanguageModel
from jaxformer.models.selection import describe_model

TINY = ModelConfig(
    vocab_size=37,
    d_model=16,
    d_ff=24,
    num_heads=4,
    d_k=3,
    d_v=5,
    num_layers=2,
    activation="gelu",
    max_length=32,
)


def variant(**changes):
    return dataclasses.replace(TINY, **changes)


def random_tokens(seed, batch, length):
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.integers(3, 37, (batch, length)), jnp.int32)


def shapes_of(config):
    tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    return jax.eval_shape(LanguageModel(config).init, jax.random.key(0), tokens)


@functools.cache
def make(config):
    """Returns a compiled ``apply``, and parameters perturbed away from symmetric initial values."""
    static = ("method", "deterministic", "mutable", "num_beams", "capacity")
    rng = np.random.default_rng(0)
    variables = jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(0, 0.3, leaf.shape), jnp.float32), shapes_of(config)
    )
    return jax.jit(LanguageModel(config).apply, static_argnames=static), variables


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("biases", [False, True])
def test_parameters_follow_a_closed_formula(positions, norm_position, biases):
    c = variant(positions=positions, norm_position=norm_position, biases=biases)
    keys, values = 4 * 3, 4 * 5
    attention = 16 * (2 * keys + 2 * values) + biases * (2 * keys + values + 16)
    layer = attention + 2 * 16 * 24 + 24 + 16 + 2 * 2 * 16
    rest = 37 * 16 + (2 * 16 if norm_position == "pre" else 0)
    rest += (32 * 16 if positions == "learned" else 0) + (37 if biases else 0)
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes_of(c))) == 2 * layer + rest


def test_parameters_have_the_names_axes_and_roles_of_the_decoder():
    info, shapes = describe_model(TINY, LanguageModel), shapes_of(TINY)["params"]
    assert set(info) == {"embedding", "decoder"}
    assert set(info["decoder"]["layers"]["self_attention"]) == {"query", "key", "value", "output"}
    whole = describe_model(TINY)["decoder"]["layers"]
    for name in ("self_attention", "feed_forward"):
        assert info["decoder"]["layers"][name] == whole[name]
    assert jax.tree.map(lambda fact, s: len(fact.axes) == s.ndim, info, shapes, is_leaf=is_info)
    assert info["embedding"].role == "table"


def is_info(node):
    return hasattr(node, "role")


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_no_token_attends_to_later_ones(norm_position):
    apply, variables = make(variant(norm_position=norm_position))
    tokens = random_tokens(0, 1, 8)
    before = apply(variables, tokens)
    for t in range(1, 8):
        after = apply(variables, tokens.at[0, t:].set(random_tokens(1, 1, 8 - t)[0]))
        np.testing.assert_array_equal(before[0, :t], after[0, :t])
        assert (before[0, t:] != after[0, t:]).any()


def test_packed_texts_equal_separate_texts():
    apply, variables = make(TINY)
    texts = [random_tokens(n, 1, 3 + n) for n in range(3)]
    lengths = [text.shape[1] for text in texts]
    packed = jnp.concatenate(texts, axis=1)
    segments = jnp.repeat(jnp.arange(1, 4), jnp.array(lengths))[None]
    positions = jnp.concatenate([jnp.arange(n) for n in lengths])[None]
    found = apply(variables, packed, segments=segments, positions=positions)
    expected = jnp.concatenate([apply(variables, text) for text in texts], axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


CHANGES = [
    {},
    {"positions": "learned"},
    {"norm_position": "pre"},
    {"norm_position": "pre", "positions": "learned", "biases": True},
    {"compute_dtype": "bfloat16", "norm_position": "pre"},
    {"compute_dtype": "int8", "positions": "learned"},
    {"positions": "rotary", "d_k": 4},
    {"compute_dtype": "int8", "positions": "rotary", "d_k": 4},
]


def steps(apply, variables, cache, tokens, beams=1):
    """Returns the logits after every token, fed one by one; each beam gets its own tokens."""
    found = []
    for t in range(tokens.shape[1]):
        newest = (tokens[:, t, None] + jnp.arange(beams)) % 37
        logits, cache = apply(variables, newest, cache, method="step")
        found.append(logits)
    return jnp.stack(found, axis=2), cache


@pytest.mark.parametrize("changes", CHANGES)
def test_cached_equals_full_pass(changes):
    config = variant(**changes)
    apply, variables = make(dataclasses.replace(config, compute_dtype="float32"))
    apply = jax.jit(LanguageModel(config).apply, static_argnames=("method", "capacity"))
    variables = {"params": prepare_params(config, variables["params"], LanguageModel)}
    tokens = random_tokens(0, 2, 9)
    full = apply(variables, tokens)
    cache = apply(variables, tokens, capacity=9, method="start")
    stepped, _ = steps(apply, variables, cache, tokens)
    # In bfloat16, sums in another order round differently.
    tolerance = 2e-2 if config.compute_dtype == "bfloat16" else 1e-4
    np.testing.assert_allclose(stepped[:, 0], full, rtol=tolerance, atol=tolerance)
    assert (stepped[:, 0].argmax(-1) == full.argmax(-1)).all()


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
def test_a_full_cache_gives_nan_and_not_other_logits(positions):
    """Its capacity is rounded up to 16 tokens, within a maximum length of 64."""
    apply, variables = make(variant(positions=positions, d_k=4, max_length=64))
    tokens = random_tokens(0, 2, 18)
    full = apply(variables, tokens)
    cache = apply(variables, tokens[:, :9], capacity=9, method="start")
    stepped, _ = steps(apply, variables, cache, tokens)
    np.testing.assert_allclose(stepped[:, 0, :16], full[:, :16], rtol=1e-4, atol=1e-4)
    assert np.isnan(stepped[:, 0, 16:]).all()
    cache = apply(variables, tokens[:, :9], capacity=9, method="start")
    with pytest.raises(UserError, match="prompt of 18 tokens: the cache has a capacity of 16"):
        apply(variables, tokens, cache, 18, method="prefill")


@pytest.mark.parametrize("changes", CHANGES)
@pytest.mark.parametrize("kept", [5, 3])
def test_prefill_equals_token_by_token(changes, kept):
    config = variant(**changes)
    apply, variables = make(dataclasses.replace(config, compute_dtype="float32"))
    static = ("method", "capacity", "num_beams")
    apply = jax.jit(LanguageModel(config).apply, static_argnames=static)
    variables = {"params": prepare_params(config, variables["params"], LanguageModel)}
    prompt, rest = random_tokens(1, 2, 5), random_tokens(2, 2, 3)

    def start():
        return apply(variables, prompt, num_beams=3, capacity=9, method="start")

    cache = start()
    for t in range(kept):
        newest = jnp.broadcast_to(prompt[:, t, None], (2, 3))
        expected, cache = apply(variables, newest, cache, method="step")
    expected_rest, _ = steps(apply, variables, cache, rest, beams=3)
    features, cache = apply(variables, prompt, start(), kept, method="prefill")
    logits = apply(variables, features, method="logits")
    found_rest, _ = steps(apply, variables, cache, rest, beams=3)
    tolerance = 2e-2 if config.compute_dtype == "bfloat16" else 1e-4
    close = functools.partial(np.testing.assert_allclose, rtol=tolerance, atol=tolerance)
    close(logits[:, kept - 1], expected[:, 0])
    close(found_rest, expected_rest)


def test_attention_dropout_rate_is_used():
    config = variant(dropout_rate=0.0, attention_dropout_rate=0.5)
    apply, variables = make(config)
    tokens, rngs = random_tokens(0, 2, 6), {"dropout": jax.random.key(0)}
    kept = apply(variables, tokens)
    dropped = apply(variables, tokens, deterministic=False, rngs=rngs)
    assert (kept != dropped).any()
    # The first token has a single weight, 1. Dropout makes it 0 or 2.
    none, _ = make(variant(dropout_rate=0.0))
    np.testing.assert_array_equal(none(variables, tokens, deterministic=False, rngs=rngs), kept)


def test_separate_embeddings_are_refused():
    with pytest.raises(UserError, match=r"expected model\.embeddings=tied"):
        shapes_of(variant(embeddings="separate"))
