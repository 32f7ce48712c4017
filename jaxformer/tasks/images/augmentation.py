"""Random shifts, rotations, zooms and deformations of pictures."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxformer.data.images import Augmentation
from jaxformer.nn.dropout import random_bits

_KNOTS = 3  # of a random field, along each axis


def augment(
    images: Float[Array, "B Y X C"], key: Array, row_ids: Int[Array, " B"], settings: Augmentation
) -> Float[Array, "B Y X C"]:
    """Returns changed pictures; each depends only on itself, the key and its row id."""
    bits = random_bits(jax.random.bits(key, (2,), jnp.uint32), row_ids, (7 + 2 * _KNOTS**2,))
    draws = bits.astype(images.dtype) * 2.0**-31 - 1
    return jax.vmap(functools.partial(_transform, settings))(images, draws)


def _transform(
    settings: Augmentation, image: Float[Array, "Y X C"], draws: Float[Array, " _"]
) -> Float[Array, "Y X C"]:
    down, right, angle, zoom, ratio, shear, flip = draws[:7]
    angle = jnp.deg2rad(settings.rotation) * angle
    rotate = jnp.array([[jnp.cos(angle), -jnp.sin(angle)], [jnp.sin(angle), jnp.cos(angle)]])
    size, ratio = 1 + settings.zoom * zoom, 1 + settings.zoom * ratio
    mirror = jnp.where(settings.flip & (flip > 0), -1.0, 1.0)
    stretch = jnp.array([[size * ratio, 0.0], [settings.shear * shear, mirror * size / ratio]])
    places = jnp.indices(image.shape[:2]).reshape(2, -1)
    center = (jnp.array(image.shape[:2]) - 1)[:, None] / 2
    places = rotate @ stretch @ (places - center) + center
    places += settings.shift * jnp.stack([down, right])[:, None]
    if settings.warp:
        field = draws[7:].reshape(2, _KNOTS, _KNOTS) * settings.warp
        places += jax.image.resize(field, (2, *image.shape[:2]), "cubic").reshape(2, -1)

    def resample(channel: Float[Array, "Y X"]) -> Float[Array, "Y X"]:
        found = jax.scipy.ndimage.map_coordinates(channel, list(places), 1, mode="nearest")
        return found.reshape(channel.shape)

    return jax.vmap(resample, 2, 2)(image)
