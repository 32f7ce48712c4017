"""The language model: parameter counts, causality, packing and dropout."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from jaxformer.config import ModelConfig
from jaxformer.models.language_model import LanguageModel

from ..nn.weights import random_params

TINY = ModelConfig(
    vocab_size=37,
    d_model=16,
    d_ff=24,
    num_heads=4,
    d_k=3,
    d_v=5,
    num_layers=2,
    max_length=32,
)
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(3, 37, (6, 9)).astype(np.int32)
DEFAULT = {
    "segments": np.ones((6, 9), np.int32),
    "positions": np.arange(9, dtype=np.int32)[None].repeat(6, axis=0),
}


def shapes_of(config):
    model = LanguageModel(config)
    tokens = jnp.asarray(np.ones((1, 1), np.int32))
    return jax.eval_shape(lambda: model.init(jax.random.key(0), tokens))


@functools.cache
def logits_fn(config, **static):
    """Returns a compiled function of tokens, segments and positions to logits."""
    model = LanguageModel(config)
    variables = {"params": random_params(model, TOKENS)}
    apply = jax.jit(functools.partial(model.apply, **static))

    def logits(*inputs, **arguments):
        return np.asarray(apply(variables, *inputs, **arguments))

    return logits


@pytest.mark.parametrize(
    ("positions", "norm_position", "biases"),
    [
        ("sinusoidal", "post", True),
        ("sinusoidal", "pre", False),
        ("learned", "post", False),
        ("learned", "pre", True),
    ],
)
def test_parameters_follow_a_closed_formula(positions, norm_position, biases):
    config = dataclasses.replace(
        TINY,
        positions=positions,
        norm_position=norm_position,
        biases=biases,
    )
    d_model = 16
    d_ff = 24
    keys = 4 * 3
    values = 4 * 5

    attention = d_model * (2 * keys + 2 * values)
    if biases:
        attention += 2 * keys + values + d_model
    feed_forward = 2 * d_model * d_ff + d_ff + d_model
    norms = 2 * 2 * d_model
    layer = attention + feed_forward + norms

    expected = 2 * layer + 37 * d_model
    if norm_position == "pre":
        expected += 2 * d_model
    if positions == "learned":
        expected += 32 * d_model
    if biases:
        expected += 37
    leaves = jax.tree.leaves(shapes_of(config))
    found = sum(leaf.size for leaf in leaves)
    assert found == expected


def test_packed_texts_equal_separate_texts():
    run = logits_fn(TINY)
    lengths = np.array([2, 3, 4])
    segments = np.repeat([1, 2, 3], lengths)
    positions = np.concatenate([np.arange(n) for n in lengths])

    def in_all_rows(row):
        return np.int32(row)[None].repeat(6, axis=0)

    packed = run(TOKENS, segments=in_all_rows(segments), positions=in_all_rows(positions))

    # Each text at the beginning of a row of its own; twice, to fill six rows.
    texts = [np.roll(TOKENS[0], -start) for start in (0, 2, 5)]
    separate = run(np.stack(texts * 2), **DEFAULT)
    expected = [row[:n] for row, n in zip(separate, lengths, strict=False)]
    whole = np.concatenate(expected)
    np.testing.assert_allclose(packed[0], whole, rtol=1e-5, atol=1e-5)


def test_attention_dropout_rate_is_used():
    config = dataclasses.replace(TINY, dropout_rate=0.0, attention_dropout_rate=0.5)
    run = logits_fn(config, deterministic=False)

    dropped = run(TOKENS, **DEFAULT, rngs={"dropout": jax.random.key(0)})

    # Also at the first token, whose single weight, 1, becomes 0 or 2.
    exact = logits_fn(TINY)(TOKENS, **DEFAULT)
    change = np.abs(dropped - exact)
    assert (change.max(axis=(0, 2)) > 0.01).all()


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
def test_exports_for_any_length_give_nan_for_texts_that_are_too_long(positions):
    config = dataclasses.replace(TINY, d_k=4, positions=positions, max_length=9)
    model = LanguageModel(config)
    params = random_params(model, TOKENS)

    @jax.jit
    def logits(params, tokens):
        return model.apply({"params": params}, tokens)

    any_shape = export.symbolic_shape("rows, length")
    any_tokens = jax.ShapeDtypeStruct(any_shape, np.int32)
    exported = export.export(logits)(params, any_tokens)

    found = exported.call(params, TOKENS)
    np.testing.assert_allclose(found, logits_fn(config)(TOKENS), rtol=1e-4, atol=1e-4)

    longer = np.pad(TOKENS, ((0, 0), (0, 1)))
    assert np.isnan(exported.call(params, longer)).all()
