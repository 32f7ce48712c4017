"""Whisper: its convolutions, fixed positions, cache and sizes.

The integration test of the same name compares whole models with transformers.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.models.whisper import Whisper, WhisperConfig

from ..nn.weights import normal, random_params

SMALL = WhisperConfig(
    vocab_size=11,
    num_mel_bins=3,
    max_source_length=4,
    d_model=8,
    d_ff=12,
    num_heads=2,
    num_layers=1,
    num_decoder_layers=2,
    max_length=6,
)
MODEL = Whisper(SMALL)
FEATURES = normal(2, 8, 3)
TOKENS = np.array([[2, 5, 7, 4], [2, 9, 3, 8]])


@pytest.fixture(scope="module")
def params():
    return random_params(MODEL, FEATURES, TOKENS)


def gelu(x):
    erf = np.vectorize(math.erf)
    return x * (1 + erf(x / math.sqrt(2))) / 2


def norm(x, p):
    centered = x - x.mean(-1, keepdims=True)
    variance = (centered**2).mean(-1, keepdims=True)
    return centered / np.sqrt(variance + 1e-5) * p["scale"] + p["bias"]


def convolve(x, kernel, bias, stride):
    """The definition: each output is a sum over three frames of the input, zero beyond its ends."""
    matrices = kernel.reshape(3, x.shape[1], -1)
    outputs = []
    for center in range(0, len(x), stride):
        total = bias.copy()
        for offset in (-1, 0, 1):
            frame = center + offset
            if 0 <= frame < len(x):
                total += x[frame] @ matrices[offset + 1]
        outputs.append(total)
    return np.array(outputs)


@jax.jit
def encode(params, features):
    return MODEL.apply({"params": params}, features, method="encode")


def test_the_encoder_reads_two_convolutions_and_the_positions(params):
    """With layers that add nothing, only its last norm follows."""
    nothing = jax.tree.map(np.zeros_like, params["encoder"]["layers"])
    bare = {**params, "encoder": {**params["encoder"], "layers": nothing}}
    encoded = np.asarray(encode(bare, FEATURES))

    for features, found in zip(FEATURES, encoded, strict=True):
        x = gelu(convolve(features, params["conv1"], params["conv1_bias"], stride=1))
        x = gelu(convolve(x, params["conv2"], params["conv2_bias"], stride=2))
        expected = norm(x + params["src_positions"], params["encoder"]["norm"])
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_steps_with_a_cache_equal_the_whole_model(params):
    @jax.jit
    def decode(params):
        variables = {"params": params}
        whole = MODEL.apply(variables, FEATURES, TOKENS)
        cache = MODEL.apply(variables, FEATURES, capacity=4, method="start")
        prompt = TOKENS[:, :2]
        _, cache = MODEL.apply(variables, prompt, cache, 2, method="prefill")
        third, cache = MODEL.apply(variables, TOKENS[:, 2:3], cache, method="step")
        fourth, _ = MODEL.apply(variables, TOKENS[:, 3:], cache, method="step")
        return whole, jnp.concatenate([third, fourth], axis=1)

    whole, steps = decode(params)
    np.testing.assert_allclose(steps, whole[:, 2:], atol=1e-5)


def test_the_positions_of_the_encoder_are_sinusoids_that_no_training_changes(params):
    def loss(params):
        logits: Any = MODEL.apply({"params": params}, FEATURES, TOKENS)
        return jnp.square(logits).sum()

    gradients = jax.jit(jax.grad(loss))(params)
    assert not np.any(gradients["src_positions"])
    assert np.any(gradients["tgt_positions"])
    assert np.any(gradients["conv1"])

    drawn = jax.jit(MODEL.init)(jax.random.key(0), FEATURES, TOKENS)["params"]
    rate = 10_000 ** (-np.arange(4) / 3)
    angles = np.arange(4)[:, None] * rate
    expected = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    np.testing.assert_allclose(drawn["src_positions"], expected, atol=1e-6)


def test_keys_have_no_bias(params):
    for stack, attention in (("encoder", "self"), ("decoder", "self"), ("decoder", "cross")):
        names = params[stack]["layers"][f"{attention}_attention"].keys()
        biases = {name for name in names if name.endswith("_bias")}
        assert biases == {"query_bias", "value_bias", "output_bias"}


@pytest.mark.parametrize(
    ("config", "size"),
    [
        (WhisperConfig(), 37_760_640),  # openai/whisper-tiny
        (
            WhisperConfig(  # openai/whisper-large-v3
                vocab_size=51_866,
                num_mel_bins=128,
                d_model=1280,
                d_ff=5120,
                num_heads=20,
                num_layers=32,
            ),
            1_543_490_560,
        ),
    ],
)
def test_published_sizes(config, size):
    model = Whisper(config)
    features = jnp.zeros((1, *config.features_shape))
    tokens = jnp.ones((1, 1), jnp.int32)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), features, tokens))
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) == size


def test_refuses_features_of_another_shape(params):
    message = r"Whisper: expected features \[batch, 8, 3\], got \(2, 7, 3\)"
    with pytest.raises(UserError, match=message):
        MODEL.apply({"params": params}, FEATURES[:, :7], TOKENS)
