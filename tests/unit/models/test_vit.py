"""The Vision Transformer against a formula in NumPy; test_family.py has its sizes."""

import dataclasses
import math

import jax
import numpy as np
import pytest

from jaxformer import ViT, ViTConfig
from jaxformer.errors import UserError
from jaxformer.models.vit import patches

from ..nn.weights import random_params

SMALL = ViTConfig(
    **{"height": 4, "width": 6, "channels": 2, "patch_size": 2, "num_classes": 3},
    **{"d_model": 8, "d_ff": 12, "num_heads": 2, "num_layers": 2, "activation": "relu"},
)
IMAGES = np.random.default_rng(0).normal(size=(2, 4, 6, 2)).astype(np.float32)


def norm(x, p):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * p["scale"] + p["bias"]


def expected(p, image, pooling):
    """One picture, layer by layer and head by head (Dosovitskiy et al. 2021, equations 1 to 4)."""
    tokens = [
        image[y : y + 2, x : x + 2].reshape(-1) @ p["patches"] + p["patches_bias"]
        for y in (0, 2)
        for x in (0, 2, 4)
    ]
    tokens = [p["class_token"], *tokens] if pooling == "token" else tokens
    z = np.stack(tokens) + p["positions"]
    for n in range(2):
        layer = jax.tree.map(lambda a, n=n: a[n], p["encoder"]["layers"])
        h, a = norm(z, layer["self_attention_residual"]["norm"]), layer["self_attention"]
        heads = []
        for head in range(2):
            q, k, v = (
                h @ a[name][:, head] + a[f"{name}_bias"][head] for name in ("query", "key", "value")
            )
            scores = np.exp(q @ k.T / math.sqrt(4))
            heads.append(scores / scores.sum(-1, keepdims=True) @ v)
        z = z + np.hstack(heads) @ a["output"] + a["output_bias"]
        h, f = norm(z, layer["feed_forward_residual"]["norm"]), layer["feed_forward"]
        z = z + np.maximum(h @ f["inner"] + f["inner_bias"], 0) @ f["outer"] + f["outer_bias"]
    z = norm(z, p["encoder"]["norm"])
    return (z[0] if pooling == "token" else z.mean(0)) @ p["classes"] + p["classes_bias"]


@pytest.mark.parametrize("pooling", ["token", "mean"])
def test_forward_pass_is_the_formula(pooling):
    model = ViT(dataclasses.replace(SMALL, pooling=pooling))
    params = random_params(model, IMAGES)
    logits = jax.jit(model.apply)({"params": params}, IMAGES)
    for found, image in zip(np.asarray(logits), IMAGES, strict=True):
        np.testing.assert_allclose(found, expected(params, image, pooling), rtol=1e-4, atol=1e-5)


def test_patches_are_a_convolution_with_its_size_as_stride():
    kernel = np.random.default_rng(1).normal(size=(2, 2, 2, 5)).astype(np.float32)
    found = jax.jit(patches, static_argnums=1)(IMAGES, 2) @ kernel.reshape(8, 5)
    dimensions = ("NHWC", "HWIO", "NHWC")
    convolved = jax.lax.conv_general_dilated(
        IMAGES, kernel, (2, 2), "VALID", dimension_numbers=dimensions
    )
    np.testing.assert_allclose(found, convolved.reshape(2, 6, 5), rtol=1e-4, atol=1e-5)


def test_pictures_of_another_size_are_refused():
    with pytest.raises(UserError, match=r"pictures \[batch, 4, 6, 2\], got"):
        ViT(SMALL).init(jax.random.key(0), IMAGES[1:, :2])
