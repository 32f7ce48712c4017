"""CLIP's rules; tests/integration/test_clip.py compares its numbers with transformers."""

import dataclasses
import functools
import math

import jax
import numpy as np
import pytest

from jaxformer.data.tokenizer import BOS, EOS, PAD
from jaxformer.errors import UserError
from jaxformer.models.clip import CLIP, CLIPConfig, VisionTower

from ..nn.weights import normal, random_params

SMALL = CLIPConfig(
    vocab_size=20,
    d_model=8,
    d_ff=12,
    num_heads=2,
    num_layers=2,
    max_length=6,
    height=4,
    width=6,
    channels=2,
    pixel_mean="0.5",
    pixel_std="0.5",
    patch_size=2,
    vision_d_model=12,
    vision_d_ff=16,
    vision_num_heads=3,
    vision_num_layers=1,
    embedding_dim=5,
)
IMAGES = normal(3, 4, 6, 2)
TOKENS = np.array(
    [
        [BOS, 7, 8, EOS, PAD],
        [BOS, 9, EOS, PAD, PAD],
    ]
)


@functools.cache
def small():
    model = CLIP(SMALL)
    return model, random_params(model, IMAGES, TOKENS)


@functools.cache
def apply(method=None):
    model, params = small()
    compiled = jax.jit(functools.partial(model.apply, method=method))
    return lambda *inputs: np.asarray(compiled({"params": params}, *inputs))


def test_logits_are_scaled_cosines_of_the_embeddings():
    _, params = small()

    logits = apply()(IMAGES, TOKENS)

    seen = apply("image_embeddings")(IMAGES)
    read = apply("text_embeddings")(TOKENS)
    for i, image in enumerate(seen):
        for n, text in enumerate(read):
            lengths = math.sqrt(image @ image) * math.sqrt(text @ text)
            expected = math.exp(params["log_scale"]) * (image @ text) / lengths
            assert math.isclose(logits[i, n], expected, rel_tol=1e-4, abs_tol=1e-5)


def test_nothing_after_the_first_end_changes_a_text():
    tokens = TOKENS.copy()
    tokens[:, 4] = [11, EOS]
    tokens[1, 3] = 12

    found = apply("text_embeddings")(tokens)

    np.testing.assert_array_equal(found, apply("text_embeddings")(TOKENS))


def test_a_token_before_the_end_changes_a_text():
    tokens = TOKENS.copy()
    tokens[:, 1] = 13

    found = apply("text_embeddings")(tokens)

    assert np.all(np.abs(found - apply("text_embeddings")(TOKENS)).max(axis=1) > 1e-3)


def test_the_vision_tower_has_no_last_norm():
    _, params = small()
    tower = VisionTower(
        settings=SMALL.vision_sizes().stack_settings(),
        d_model=12,
        image_shape=SMALL.image_shape,
        patch_size=2,
    )

    found = jax.jit(tower.apply)({"params": params["vision"]}, IMAGES)
    features = np.asarray(found)

    assert features.shape == (3, 7, 12)
    first = features[:, 0]
    centered = first - first.mean(axis=-1, keepdims=True)
    deviation = np.sqrt((centered**2).mean(axis=-1, keepdims=True) + 1e-5)
    normalized = centered / deviation
    pooled = normalized * params["vision_norm"]["scale"] + params["vision_norm"]["bias"]
    expected = pooled @ params["vision_projection"]
    np.testing.assert_allclose(apply("image_embeddings")(IMAGES), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vision_num_heads": 5}, "model.vision_num_heads must divide model.vision_d_model=12"),
        ({"patch_size": 4}, "model.patch_size must divide model.width=6"),
        ({"num_heads": 3}, "model.num_heads must divide model.d_model=8"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(change, message):
    with pytest.raises(UserError, match=message):
        dataclasses.replace(SMALL, **change)


def test_pictures_of_another_size_are_refused():
    model, params = small()
    with pytest.raises(UserError, match=r"pictures \[batch, 4, 6, 2\], got"):
        model.apply({"params": params}, IMAGES[:, :2], TOKENS)
