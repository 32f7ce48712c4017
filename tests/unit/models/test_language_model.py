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
    vocab_size=37, d_model=16, d_ff=24, num_heads=4, d_k=3, d_v=5, num_layers=2, max_length=32
)
TOKENS = np.random.default_rng(0).integers(3, 37, (6, 9)).astype(np.int32)
DEFAULT = {
    "segments": np.ones((6, 9), np.int32),
    "positions": np.arange(9, dtype=np.int32)[None].repeat(6, axis=0),
}


def shapes_of(config):
    tokens = jnp.asarray(np.ones((1, 1), np.int32))
    return jax.eval_shape(lambda: LanguageModel(config).init(jax.random.key(0), tokens))


@functools.cache
def logits_fn(config, **static):
    """Returns a compiled function of tokens, segments and positions to logits."""
    variables = {"params": random_params(LanguageModel(config), TOKENS)}
    apply = jax.jit(functools.partial(LanguageModel(config).apply, **static))
    return lambda *inputs, **arguments: np.asarray(apply(variables, *inputs, **arguments))


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
    c = dataclasses.replace(TINY, positions=positions, norm_position=norm_position, biases=biases)
    keys, values = 4 * 3, 4 * 5
    attention = 16 * (2 * keys + 2 * values) + biases * (2 * keys + values + 16)
    layer = attention + 2 * 16 * 24 + 24 + 16 + 2 * 2 * 16
    rest = 37 * 16 + (2 * 16 if norm_position == "pre" else 0)
    rest += (32 * 16 if positions == "learned" else 0) + (37 if biases else 0)
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes_of(c))) == 2 * layer + rest


def test_packed_texts_equal_separate_texts():
    run = logits_fn(TINY)
    lengths = np.array([2, 3, 4])
    segments = np.repeat([1, 2, 3], lengths)
    positions = np.concatenate([np.arange(n) for n in lengths])
    packed = {"segments": segments, "positions": positions}
    packed = {name: np.int32(row)[None].repeat(6, axis=0) for name, row in packed.items()}
    found = run(TOKENS, **packed)
    texts = np.stack([np.roll(TOKENS[0], -start) for start in (0, 2, 5)] * 2)
    expected = run(texts, **DEFAULT)
    expected = np.concatenate([row[:n] for row, n in zip(expected, lengths, strict=False)])
    np.testing.assert_allclose(found[0], expected, rtol=1e-5, atol=1e-5)


def test_attention_dropout_rate_is_used():
    config = dataclasses.replace(TINY, dropout_rate=0.0, attention_dropout_rate=0.5)
    run = logits_fn(config, deterministic=False)
    dropped = run(TOKENS, **DEFAULT, rngs={"dropout": jax.random.key(0)})
    # Also at the first token, whose single weight, 1, becomes 0 or 2.
    change = np.abs(dropped - logits_fn(TINY)(TOKENS, **DEFAULT))
    assert (change.max(axis=(0, 2)) > 0.01).all()


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
def test_exports_for_any_length_give_nan_for_texts_that_are_too_long(positions):
    config = dataclasses.replace(TINY, d_k=4, positions=positions, max_length=9)
    model = LanguageModel(config)
    params = random_params(model, TOKENS)
    shape = export.symbolic_shape("rows, length")
    exported = export.export(jax.jit(lambda p, tokens: model.apply({"params": p}, tokens)))(
        params, jax.ShapeDtypeStruct(shape, np.int32)
    )
    found, longer = exported.call(params, TOKENS), np.pad(TOKENS, ((0, 0), (0, 1)))
    np.testing.assert_allclose(found, logits_fn(config)(TOKENS), rtol=1e-4, atol=1e-4)
    assert np.isnan(exported.call(params, longer)).all()
