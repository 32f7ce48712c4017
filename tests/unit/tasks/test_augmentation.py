"""Random changes of pictures: their formula, and their independence of the batch."""

import jax
import numpy as np

from jaxformer.data.images import Augmentation
from jaxformer.tasks.images.augmentation import augment

IMAGES = np.random.default_rng(0).normal(size=(64, 6, 9, 2)).astype(np.float32)
ALL = Augmentation(shift=2.0, rotation=20.0, zoom=0.2, shear=0.3, warp=0.5, flip=True)
run = jax.jit(augment, static_argnums=3)


def test_a_row_depends_only_on_itself_and_its_number():
    ids = np.arange(64)
    whole = np.asarray(run(IMAGES, jax.random.key(3), ids, ALL))

    chosen = ids[::-1]
    again = np.asarray(run(IMAGES[chosen], jax.random.key(3), ids[chosen], ALL))

    np.testing.assert_array_equal(again, whole[chosen])
    assert np.abs(whole - IMAGES).mean() > 0.1


def maps_of(settings):
    """Returns what becomes of the center, and the linear map, of 64 pictures.

    A linear picture stays linear, so its values at three pixels give the map.
    """
    y, x = np.indices((9, 9), float)
    picture = np.stack([y, x], axis=-1)
    pictures = np.repeat(picture[None], 64, axis=0).astype(np.float32)  # [64, 9, 9, 2]

    found = np.asarray(run(pictures, jax.random.key(0), np.arange(64), settings))

    center = found[:, 4, 4]
    down = found[:, 5, 4] - center
    right = found[:, 4, 5] - center
    return center - 4, np.stack([down, right], axis=-1)  # [64, 2], [64, 2, 2]


IDENTITY = np.broadcast_to(np.eye(2), (64, 2, 2))


def test_pictures_are_shifted_within_the_range():
    center, linear = maps_of(Augmentation(shift=2.0))

    assert np.abs(center).max() <= 2
    assert center.std(axis=0).min() > 0.8
    np.testing.assert_allclose(linear, IDENTITY, atol=1e-5)


def test_pictures_are_rotated_within_the_range():
    center, linear = maps_of(Augmentation(rotation=30.0))

    np.testing.assert_allclose(center, 0, atol=1e-5)
    angles = np.arctan2(linear[:, 1, 0], linear[:, 0, 0])
    assert 20 < np.rad2deg(np.abs(angles)).max() <= 30

    gram = linear @ linear.swapaxes(1, 2)
    np.testing.assert_allclose(gram, IDENTITY, atol=1e-4)


def test_pictures_are_zoomed_within_the_range():
    center, linear = maps_of(Augmentation(zoom=0.2))

    np.testing.assert_allclose(center, 0, atol=1e-5)
    assert 0.6 < linear[:, 0, 0].min() < 0.9
    assert 1.1 < linear[:, 1, 1].max() < 1.6


def test_without_settings_nothing_changes():
    found = run(IMAGES, jax.random.key(3), np.arange(64), Augmentation())
    np.testing.assert_allclose(found, IMAGES, atol=1e-6)
