"""The Vision Transformer against a formula in NumPy; test_family.py has its sizes."""

import dataclasses
import math

import jax
import numpy as np
import pytest

from jaxformer import ViT, ViTConfig
from jaxformer.errors import UserError
from jaxformer.models.vit import patches

from ..nn.weights import normal, random_params

SMALL = ViTConfig(
    height=4,
    width=6,
    channels=2,
    patch_size=2,
    num_classes=3,
    d_model=8,
    d_ff=12,
    num_heads=2,
    num_layers=2,
    activation="relu",
)
IMAGES = normal(2, 4, 6, 2)


def norm(x, p):
    centered = x - x.mean(-1, keepdims=True)
    variance = (centered**2).mean(-1, keepdims=True)
    normalized = centered / np.sqrt(variance + 1e-6)
    return normalized * p["scale"] + p["bias"]


def self_attention(x, p):
    """Two heads of queries and keys of size 4, over all tokens; x is [T, D]."""

    def projected(name, head):
        kernel = p[name][:, head]
        bias = p[f"{name}_bias"][head]
        return x @ kernel + bias

    heads = []
    for head in range(2):
        queries = projected("query", head)
        keys = projected("key", head)
        values = projected("value", head)
        scores = queries @ keys.T / math.sqrt(4)
        odds = np.exp(scores)
        weights = odds / odds.sum(-1, keepdims=True)
        heads.append(weights @ values)
    concatenated = np.hstack(heads)
    return concatenated @ p["output"] + p["output_bias"]


def feed_forward(x, p):
    linear = x @ p["inner"] + p["inner_bias"]
    inner = np.maximum(linear, 0)
    return inner @ p["outer"] + p["outer_bias"]


def expected_logits(p, image, pooling):
    """One picture, layer by layer and head by head (Dosovitskiy et al. 2021, equations 1 to 4)."""
    tokens = [p["class_token"]] if pooling == "token" else []
    for y in (0, 2):
        for x in (0, 2, 4):
            patch = image[y : y + 2, x : x + 2].reshape(-1)
            token = patch @ p["patches"] + p["patches_bias"]
            tokens.append(token)
    z = np.stack(tokens) + p["positions"]

    for n in range(2):
        layer = jax.tree.map(lambda leaf, n=n: leaf[n], p["encoder"]["layers"])
        h = norm(z, layer["self_attention_residual"]["norm"])
        z = z + self_attention(h, layer["self_attention"])
        h = norm(z, layer["feed_forward_residual"]["norm"])
        z = z + feed_forward(h, layer["feed_forward"])

    z = norm(z, p["encoder"]["norm"])
    pooled = z[0] if pooling == "token" else z.mean(0)
    return pooled @ p["classes"] + p["classes_bias"]


@pytest.mark.parametrize("pooling", ["token", "mean"])
def test_forward_pass_is_the_formula(pooling):
    model = ViT(dataclasses.replace(SMALL, pooling=pooling))
    params = random_params(model, IMAGES)

    logits = jax.jit(model.apply)({"params": params}, IMAGES)

    for found, image in zip(np.asarray(logits), IMAGES, strict=True):
        expected = expected_logits(params, image, pooling)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_patches_are_a_convolution_with_its_size_as_stride():
    kernel = normal(2, 2, 2, 5, seed=1)

    cut = jax.jit(patches, static_argnums=1)
    found = cut(IMAGES, 2) @ kernel.reshape(8, 5)

    convolved = jax.lax.conv_general_dilated(
        IMAGES,
        kernel,
        window_strides=(2, 2),
        padding="VALID",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    np.testing.assert_allclose(found, convolved.reshape(2, 6, 5), rtol=1e-4, atol=1e-5)


def test_pictures_of_another_size_are_refused():
    model = ViT(SMALL)
    with pytest.raises(UserError, match=r"pictures \[batch, 4, 6, 2\], got"):
        model.init(jax.random.key(0), IMAGES[1:, :2])
