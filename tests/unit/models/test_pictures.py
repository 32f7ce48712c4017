"""Normalization of the pixels that models of pictures take."""

import jax
import numpy as np
import pytest

from jaxformer import ViTConfig
from jaxformer.errors import UserError

IMAGES = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3)).astype(np.uint8)
PATCHES = {"height": 8, "width": 8, "patch_size": 4}


def test_pixels_are_from_minus_1_to_1_by_default():
    found = jax.jit(ViTConfig(**PATCHES).scale_pixels)(IMAGES)
    np.testing.assert_allclose(found, IMAGES / 127.5 - 1, atol=1e-6)


def test_each_channel_has_its_mean_and_deviation():
    mean = [0.485, 0.456, 0.406]
    std = [0.229, 0.224, 0.225]
    model = ViTConfig(
        pixel_mean="0.485 0.456 0.406",
        pixel_std="0.229 0.224 0.225",
        **PATCHES,
    )

    found = jax.jit(model.scale_pixels)(IMAGES)

    expected = (IMAGES / 255 - np.array(mean)) / np.array(std)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pixel_mean": "0.5 0.5"}, "model.pixel_mean must be one number, or one for each of mode"),
        ({"pixel_mean": ""}, "model.pixel_mean must be one number, or .*channels=3, .*: got ''"),
        ({"pixel_std": "a"}, "separated by spaces: got 'a'"),
        ({"pixel_std": "nan"}, "separated by spaces: got 'nan'"),
        ({"pixel_std": "1 0 1"}, "model.pixel_std must be greater than 0: got 1 0 1"),
        ({"pixel_mean": 0.5}, "model.pixel_mean must be of type str: got 0.5"),
        ({"resampling": "nearest"}, "model.resampling must be one of 'bilinear', 'bicubic': got"),
        ({"shortest_side": 7}, "shortest_side must be at least model.height=8 and .*: got 7"),
    ],
)
def test_other_values_are_refused(fields, message):
    with pytest.raises(UserError, match=message):
        ViTConfig(**PATCHES, **fields)
