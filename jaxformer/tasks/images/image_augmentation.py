"""Random shifts, rotations, zooms and deformations of pictures."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxformer.data.images import Augmentation
from jaxformer.nn.dropout import random_bits

_KNOTS = 3  # of a random field, along each axis


def augment(
    images: Float[Array, "B Y X C"],
    key: Array,
    row_ids: Int[Array, " B"],
    settings: Augmentation,
) -> Float[Array, "B Y X C"]:
    """Returns changed pictures; each depends only on itself, the key and its row id."""
    key_bits = jax.random.bits(key, (2,), jnp.uint32)
    count = 7 + 2 * _KNOTS**2
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
    down, right, angle, zoom, ratio, shear, flip = draws[:7]

    # Where each pixel comes from: stretched and rotated around the center, shifted and warped.
    angle = jnp.deg2rad(settings.rotation) * angle
    rotate = jnp.array(
        [
            [jnp.cos(angle), -jnp.sin(angle)],
            [jnp.sin(angle), jnp.cos(angle)],
        ]
    )
    size = 1 + settings.zoom * zoom
    ratio = 1 + settings.zoom * ratio
    mirror = jnp.where(settings.flip & (flip > 0), -1.0, 1.0)
    stretch = jnp.array(
        [
            [size * ratio, 0.0],
            [settings.shear * shear, mirror * size / ratio],
        ]
    )

    height_and_width = image.shape[:2]
    places = jnp.indices(height_and_width).reshape(2, -1)  # [2, Y * X]
    center = (jnp.array(height_and_width) - 1)[:, None] / 2
    places = rotate @ stretch @ (places - center) + center
    places += settings.shift * jnp.stack([down, right])[:, None]
    if settings.warp:
        field = draws[7:].reshape(2, _KNOTS, _KNOTS) * settings.warp
        places += jax.image.resize(field, (2, *height_and_width), "cubic").reshape(2, -1)

    def resample(channel: Float[Array, "Y X"]) -> Float[Array, "Y X"]:
        found = jax.scipy.ndimage.map_coordinates(
            channel,
            list(places),
            order=1,
            mode="nearest",
        )
        return found.reshape(channel.shape)

    return jax.vmap(resample, 2, 2)(image)
