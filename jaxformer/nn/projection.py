"""Matrix products with parameters: the one place that says in which precision they run.

What goes in is rounded to ``config.compute_dtype``, sums are float32, and what comes out is in the
type of the activations; where devices add up a product, it is that which they send. Logits of a
search are float32 products unless that type is int8; those of the training loss
(:mod:`jaxformer.training.losses`) are like other products. On CPUs it is asking for a float32
result that brings the fast bfloat16 and int8 instructions; accelerators sum in float32 anyway. In
how many bits accelerators multiply float32 is left to jax's default: bfloat16's on TPUs, TF32's on
NVIDIA GPUs; ``JAX_DEFAULT_MATMUL_PRECISION=highest`` means all.

Departs from the paper: "bfloat16" and, to decode with, "int8", both optional; configs say so.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int, Int8

from jaxformer.config import ModelConfig
from jaxformer.layout import has_explicit_axes, take_rows
from jaxformer.nn.matmul import matmul, matmul_nt
from jaxformer.nn.sharding import for_each_part

# What rematerialisation calls results of :func:`project`, which may be kept while the cheap rest
# is computed again.
PRODUCT = "product"


class Int8Matrix(NamedTuple):
    """A parameter rounded to eight bits, with a scale for each output: values * scale.

    Attributes:
      values: int8, from -127 to 127, in the shape of the parameter.
      scale: float32, in the same shape but for the inputs' axis, which is 1.
    """

    values: Int8[Array, "..."]
    scale: Float[Array, "..."]


def product_dtype(config: ModelConfig) -> str:
    """Type that parameters and inputs have in a matrix product, unless they are rounded to int8."""
    return "bfloat16" if config.compute_dtype == "bfloat16" else "float32"


def activation_dtype(config: ModelConfig) -> str:
    """Type of what goes from layer to layer, and of the keys and values that decoding keeps.

    That of the products, but float32 on CPUs, where converting takes longer than reading twice
    as much.
    """
    return "float32" if jax.default_backend() == "cpu" else product_dtype(config)


def project(
    x: Float[Array, "*rows D"],
    kernel: Float[Array, "D ..."] | Int8Matrix,
    bias: Float[Array, "..."] | None,
    config: ModelConfig,
) -> Float[Array, "..."]:
    """Matrix product of the last axis of ``x`` with the first of ``kernel``, plus ``bias``."""
    if isinstance(kernel, Int8Matrix):
        product = _int8_product(x, kernel)
    else:
        dtype = product_dtype(config)
        product = matmul(x.astype(dtype), kernel.astype(dtype), x.dtype)
    product = checkpoint_name(product.astype(x.dtype), PRODUCT)
    return product if bias is None else product + bias.astype(x.dtype)


def project_to_rows(
    x: Float[Array, "*rows D"], table: Float[Array, "V D"] | Int8Matrix
) -> Float[Array, "*rows V"]:
    """Dot products of ``x`` with every row of ``table``: logits, float32.

    In float32 also where layers compute in bfloat16: which of two near words is likelier often
    depends on it, and it takes little of the time.
    """
    if not isinstance(table, Int8Matrix):
        return matmul_nt(x.astype(jnp.float32), table.astype(jnp.float32))
    inputs = _rounded(x.astype(jnp.float32), -1)
    # Not as the product with a transpose, which XLA would widen to int32 and then transpose.
    sums = matmul_nt(inputs.values, table.values, jnp.int32)
    return sums.astype(jnp.float32) * (inputs.scale * table.scale[:, 0])


def look_up(
    table: Float[Array, "V D"] | Int8Matrix, ids: Int[Array, "*rows"]
) -> Float[Array, "*rows D"]:
    """Returns rows of a table, float32; NaN for an id that the table does not have."""
    if isinstance(table, Int8Matrix):
        return take_rows(table.values, ids) * take_rows(table.scale, ids)
    if has_explicit_axes(ids):
        return take_rows(table, ids).astype(jnp.float32)
    # Whole on every device: the compiler of jax 0.10 crashes on looking up rows of a split table.
    found = for_each_part(take_rows, table, ids)
    return found.reshape(*ids.shape, -1).astype(jnp.float32)


def quantise(parameter: Float[Array, "..."], inputs_axis: int) -> Int8Matrix:
    """The nearest 8-bit matrix: each output's largest weight becomes 127 or -127.

    >>> matrix = quantise(jnp.array([[0.5, 254.0], [-1.0, 2.0]]), inputs_axis=0)
    >>> matrix.values.tolist(), (matrix.values * matrix.scale)[:, 1].tolist()
    ([[64, 127], [-127, 1]], [254.0, 2.0])
    """
    return _rounded(parameter.astype(jnp.float32), inputs_axis)


def _int8_product(x: Float[Array, "*rows D"], kernel: Int8Matrix) -> Float[Array, "..."]:
    # Inputs are rounded row by row, so that a row's result does not depend on the others.
    rows = x.reshape(-1, x.shape[-1]).astype(jnp.float32)
    inputs, matrix = _rounded(rows, 1), kernel.values.reshape(rows.shape[1], -1)
    sums = jnp.matmul(inputs.values, matrix, preferred_element_type=jnp.int32)
    product = sums.astype(jnp.float32) * (inputs.scale * kernel.scale.reshape(1, -1))
    return product.reshape(*x.shape[:-1], *kernel.values.shape[1:])


def _rounded(values: Float[Array, "..."], axis: int) -> Int8Matrix:
    largest = jnp.abs(values).max(axis=axis, keepdims=True)
    scale = jnp.where(largest == 0, 1.0, largest / 127.0)
    return Int8Matrix(jnp.round(values / scale).astype(jnp.int8), scale)
