"""Random shifts, rotations, zooms and deformations of pictures."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxformer.data.images import Augmentation
from jaxformer.nn.dropout import random_bits
from jaxformer.training.task import Randomness

# Random numbers of a picture: seven for its affine map, and the warp's displacements down and to
# the right of a square of knots.
_AFFINE_DRAWS = 7
_KNOTS = 3  # along each axis
_WARP_DRAWS = 2 * _KNOTS**2


def change_pictures(
    images: Float[Array, "B Y X C"],
    randomness: Randomness,
    settings: Augmentation,
) -> Float[Array, "B Y X C"]:
    """Returns the pictures of a training step, changed at random."""
    # The seed is dropout's, but the stream of random numbers is another.
    key = jax.random.fold_in(randomness.key, 1)
    return augment(images, key, randomness.row_ids, settings=settings)


def augment(
    images: Float[Array, "B Y X C"],
    key: Array,
    row_ids: Int[Array, " B"],
    settings: Augmentation,
) -> Float[Array, "B Y X C"]:
    """Returns changed pictures; each depends only on itself, the key and its row id."""
    key_bits = jax.random.bits(key, (2,), jnp.uint32)
    count = _AFFINE_DRAWS + _WARP_DRAWS
    bits = random_bits(key_bits, row_ids, (count,))

    # Numbers from -1 to 1: [B, count].
    draws = bits.astype(images.dtype) * 2.0**-31 - 1

    transform = functools.partial(_transform, settings)
    return jax.vmap(transform)(images, draws)


def _transform(
    settings: Augmentation,
    image: Float[Array, "Y X C"],
    draws: Float[Array, " _"],
) -> Float[Array, "Y X C"]:
    """Returns a picture whose pixels are interpolated between those at ``sources`` of the old one.

    The sources are the pixels' own places, stretched and rotated around the center of the picture,
    shifted and warped.
    """
    # Each is from -1 to 1; the settings have the greatest changes.
    down, right, turn, zoom, stretch, shear, flip = draws[:_AFFINE_DRAWS]

    angle = jnp.deg2rad(settings.rotation) * turn
    rotation = jnp.array(
        [
            [jnp.cos(angle), -jnp.sin(angle)],
            [jnp.sin(angle), jnp.cos(angle)],
        ]
    )

    size = 1 + settings.zoom * zoom
    ratio = 1 + settings.zoom * stretch
    mirror = jnp.where(settings.flip & (flip > 0), -1.0, 1.0)
    scaling = jnp.array(
        [
            [size * ratio, 0.0],
            [settings.shear * shear, mirror * size / ratio],
        ]
    )

    height_and_width = image.shape[:2]
    # [2, Y * X]: row and column of each pixel.
    pixels = jnp.indices(height_and_width).reshape(2, -1)
    last_pixel = (jnp.array(height_and_width) - 1)[:, None]
    center = last_pixel / 2
    sources = rotation @ scaling @ (pixels - center) + center
    sources += settings.shift * jnp.stack([down, right])[:, None]

    if settings.warp:
        knots = draws[_AFFINE_DRAWS:].reshape(2, _KNOTS, _KNOTS) * settings.warp
        displacements = jax.image.resize(knots, (2, *height_and_width), "cubic")
        sources += displacements.reshape(2, -1)

    def resample(channel: Float[Array, "Y X"]) -> Float[Array, "Y X"]:
        values = jax.scipy.ndimage.map_coordinates(
            channel,
            list(sources),
            order=1,
            mode="nearest",
        )
        return values.reshape(channel.shape)

    return jax.vmap(resample, in_axes=2, out_axes=2)(image)
