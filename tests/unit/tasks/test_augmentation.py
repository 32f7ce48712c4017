"""Random changes of pictures: their formula, and their independence of the batch."""

import jax
import numpy as np
import pytest

from jaxformer.data.images import Augmentation
from jaxformer.tasks.images.image_augmentation import augment

IMAGES = np.random.default_rng(0).normal(size=(64, 6, 9, 2)).astype(np.float32)
ALL = Augmentation(shift=2.0, rotation=20.0, zoom=0.2, shear=0.3, warp=0.5, flip=True)
run = jax.jit(augment, static_argnums=3)


def test_a_row_depends_only_on_itself_and_its_number():
    ids = np.arange(64)
    whole = np.asarray(run(IMAGES, jax.random.key(3), ids, ALL))
    chosen = np.arange(64)[::-1]
    again = np.asarray(run(IMAGES[chosen], jax.random.key(3), ids[chosen], ALL))
    np.testing.assert_array_equal(again, whole[chosen])
    assert np.abs(whole - IMAGES).mean() > 0.1


def test_without_settings_nothing_changes():
    found = run(IMAGES, jax.random.key(3), np.arange(64), Augmentation())
    np.testing.assert_allclose(found, IMAGES, atol=1e-6)


@pytest.mark.parametrize(
    "settings", [Augmentation(shift=2.0), Augmentation(rotation=30.0), Augmentation(zoom=0.2)]
)
def test_pictures_are_moved_within_the_range(settings):
    """A linear picture stays linear, so its values at three pixels give the map."""
    y, x = np.indices((9, 9), float)
    pictures = np.repeat(np.stack([y, x], -1)[None], 64, 0).astype(np.float32)
    found = np.asarray(run(pictures, jax.random.key(0), np.arange(64), settings))
    center = found[:, 4, 4] - 4
    columns = (found[:, 5, 4] - found[:, 4, 4], found[:, 4, 5] - found[:, 4, 4])
    linear = np.stack(columns, -1)
    if settings.shift:
        assert np.abs(center).max() <= 2
        assert center.std(axis=0).min() > 0.8
        np.testing.assert_allclose(linear, np.broadcast_to(np.eye(2), linear.shape), atol=1e-5)
        return
    np.testing.assert_allclose(center, 0, atol=1e-5)
    if settings.rotation:
        angles = np.arctan2(linear[:, 1, 0], linear[:, 0, 0])
        assert 20 < np.rad2deg(np.abs(angles)).max() <= 30
        gram = linear @ linear.swapaxes(1, 2)
        np.testing.assert_allclose(gram, np.broadcast_to(np.eye(2), gram.shape), atol=1e-4)
    else:
        assert 0.6 < linear[:, 0, 0].min() < 0.9
        assert 1.1 < linear[:, 1, 1].max() < 1.6
