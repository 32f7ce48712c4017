"""Random changes of pictures: their formula, and their independence of the batch."""

import jax
import numpy as np

from jaxformer.data.images import Augmentation
from jaxformer.tasks.images.image_augmentation import augment

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(64, 6, 9, 2)).astype(np.float32)
ALL = Augmentation(
    shift=2.0,
    rotation=20.0,
    zoom=0.2,
    shear=0.3,
    warp=0.5,
    flip=True,
)
IDS = np.arange(64)
run = jax.jit(augment, static_argnums=3)


def augmented(images, ids, settings, seed=3):
    key = jax.random.key(seed)
    changed = run(images, key, ids, settings)
    return np.asarray(changed)


def test_a_row_depends_only_on_itself_and_its_number():
    whole = augmented(IMAGES, IDS, ALL)

    chosen = IDS[::-1]
    again = augmented(IMAGES[chosen], chosen, ALL)

    np.testing.assert_array_equal(again, whole[chosen])
    changes = np.abs(whole - IMAGES)
    assert changes.mean() > 0.1


def maps_of(settings):
    """Returns what becomes of the center, and the linear map, of 64 pictures.

    A linear picture stays linear, so its values at three pixels give the map.
    """
    y, x = np.indices((9, 9), float)
    picture = np.stack([y, x], axis=-1).astype(np.float32)
    pictures = np.repeat(picture[None], 64, axis=0)  # [64, 9, 9, 2]

    found = augmented(pictures, IDS, settings, seed=0)

    center = found[:, 4, 4]  # [64, 2]
    down = found[:, 5, 4] - center
    right = found[:, 4, 5] - center
    linear = np.stack([down, right], axis=-1)  # [64, 2, 2]
    return center - 4, linear


IDENTITY = np.broadcast_to(np.eye(2), (64, 2, 2))


def test_pictures_are_shifted_within_the_range():
    center, linear = maps_of(Augmentation(shift=2.0))

    assert np.abs(center).max() <= 2
    spread = center.std(axis=0)
    assert spread.min() > 0.8
    np.testing.assert_allclose(linear, IDENTITY, atol=1e-5)


def test_pictures_are_rotated_within_the_range():
    center, linear = maps_of(Augmentation(rotation=30.0))

    np.testing.assert_allclose(center, 0, atol=1e-5)
    sine = linear[:, 1, 0]
    cosine = linear[:, 0, 0]
    angles = np.arctan2(sine, cosine)
    degrees = np.rad2deg(angles)
    assert 20 < np.abs(degrees).max() <= 30

    # Lengths and right angles stay the same.
    gram = linear @ linear.swapaxes(1, 2)
    np.testing.assert_allclose(gram, IDENTITY, atol=1e-4)


def test_pictures_are_zoomed_within_the_range():
    center, linear = maps_of(Augmentation(zoom=0.2))

    np.testing.assert_allclose(center, 0, atol=1e-5)
    heights = linear[:, 0, 0]
    widths = linear[:, 1, 1]
    assert 0.6 < heights.min() < 0.9
    assert 1.1 < widths.max() < 1.6


def test_without_settings_nothing_changes():
    found = augmented(IMAGES, IDS, Augmentation())
    np.testing.assert_allclose(found, IMAGES, atol=1e-6)
