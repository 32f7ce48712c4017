"""Rounding the operands of matmuls to float16, or to float8 with a scale for each array.

"float8" is e4m3 for inputs and parameters, with 3 bits of mantissa, and e5m2 for gradients, with 2
bits and a larger range (Micikevicius et al. 2022). Arrays are scaled by their own largest magnitude
(current scaling), so that there is no state. Scales are powers of two, so that a number is rounded
as in any other array, unless it is 2^15 times smaller than the largest one: results depend little
on the batch and the mesh.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float


class Formats(NamedTuple):
    """The formats of the operands of matmuls with parameters, and of the gradients of results."""

    operands: str
    gradients: str


# By compute dtype.
FORMATS = {
    "float16": Formats("float16", "float16"),
    "float8": Formats("float8_e4m3fn", "float8_e5m2"),
}


def round_operand(array: Float[Array, "..."], compute_dtype: str) -> Array:
    """Returns inputs or parameters of a matmul, rounded, in the dtype to multiply in."""
    return _round(array, FORMATS[compute_dtype].operands)


def round_gradient(gradient: Float[Array, "..."], compute_dtype: str) -> Array:
    """Returns the gradient of the result of a matmul, rounded, in the dtype to multiply in."""
    return _round(gradient, FORMATS[compute_dtype].gradients)


def _round(array: Float[Array, "..."], dtype: str) -> Array:
    if dtype == "float16":
        return array.astype(dtype)

    # Numbers of float8 times a power of two are exact in bfloat16. On NVIDIA GPUs from Hopper on,
    # XLA recognizes this conversion and product, and multiplies the float8 numbers themselves.
    wide = array.astype(jnp.float32)
    exponent = _exponent_of_scale(wide, dtype)
    scaled = jnp.ldexp(wide, exponent).astype(dtype)
    return scaled.astype(jnp.bfloat16) * jnp.ldexp(jnp.float32(1), -exponent).astype(jnp.bfloat16)


def _exponent_of_scale(array: Float[Array, "..."], dtype: str) -> Array:
    """Returns the largest power of two by which the array fits into the range of a format."""
    fraction, exponent = jnp.frexp(jnp.abs(array).max())
    largest_fraction, largest_exponent = jnp.frexp(jnp.float32(jnp.finfo(dtype).max))
    fits = (fraction <= largest_fraction).astype(exponent.dtype)

    # Its inverse must be a normal number, too.
    return jnp.clip(largest_exponent - exponent - 1 + fits, -126, 126)
