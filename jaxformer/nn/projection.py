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

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int8

from jaxformer.config import ModelConfig
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
    """Matrix product of the last axis of ``x`` with the first of ``kernel``, plus ``bias``.

    Rows are flattened to two dimensions first: the weight gradient that autodiff derives from
    a three-dimensional product is much slower on CPUs, and equal elsewhere.
    """
    flat = x.reshape(-1, x.shape[-1])
    if isinstance(kernel, Int8Matrix):
        matrix = Int8Matrix(*(part.reshape(part.shape[0], -1) for part in kernel))
        product, outputs = _int8_product(flat, matrix), kernel.values.shape[1:]
    else:
        dtype = product_dtype(config)
        matrix = kernel.reshape(kernel.shape[0], -1).astype(dtype)
        product: Array = _product(x.dtype, flat.astype(dtype), matrix)
        outputs = kernel.shape[1:]
    product = checkpoint_name(product.astype(x.dtype).reshape(*x.shape[:-1], *outputs), PRODUCT)
    return product if bias is None else product + bias.astype(x.dtype)


def project_to_rows(
    x: Float[Array, "*rows D"], table: Float[Array, "V D"] | Int8Matrix
) -> Float[Array, "*rows V"]:
    """Dot products of ``x`` with every row of ``table``: logits, float32.

    In float32 also where layers compute in bfloat16: which of two near words is likelier often
    depends on it, and it takes little of the time.
    """
    flat = x.reshape(-1, x.shape[-1])
    if isinstance(table, Int8Matrix):
        # Not as the product with a transpose, which XLA would widen to int32 and then transpose.
        inputs = _rounded(flat.astype(jnp.float32), 1)
        sums = jnp.einsum(
            "rd,vd->rv", inputs.values, table.values, preferred_element_type=jnp.int32
        )
        product = sums.astype(jnp.float32) * (inputs.scale * table.scale[:, 0])
    else:
        product = rows_by_rows(flat.astype(jnp.float32), table.astype(jnp.float32))
    return product.reshape(*x.shape[:-1], -1)


def rows_by_rows(
    a: Float[Array, "R D"], b: Float[Array, "V D"], dtype: DTypeLike = jnp.float32
) -> Float[Array, "R V"]:
    """``a @ b.T``. With a transpose, XLA would not use the CPU's bfloat16 units."""
    return jnp.einsum("rd,vd->rv", a, b, preferred_element_type=dtype)


def columns_by_columns(a: Float[Array, "R D"], b: Float[Array, "R F"]) -> Float[Array, "D F"]:
    """``a.T @ b``, float32. Contracting two axes, XLA uses the CPU's bfloat16 units; one, not."""
    halves = 2 if a.shape[0] % 2 == 0 else 1
    a, b = (m.reshape(halves, -1, m.shape[1]) for m in (a, b))
    return jnp.einsum("hrd,hrf->df", a, b, preferred_element_type=jnp.float32)


def look_up(table: Float[Array, "V D"] | Int8Matrix, rows: Array) -> Float[Array, "*rows D"]:
    """Rows of a table, float32."""
    if isinstance(table, Int8Matrix):
        return table.values[rows] * table.scale[rows]
    # Whole on every device: the compiler of jax 0.10 crashes on looking up rows of a split table.
    found = for_each_part(lambda table, rows: table[rows], table, rows)
    return found.reshape(*rows.shape, -1).astype(jnp.float32)


def quantise(parameter: Float[Array, "..."], inputs_axis: int) -> Int8Matrix:
    """The nearest 8-bit matrix: each output's largest weight becomes 127 or -127.

    >>> matrix = quantise(jnp.array([[0.5, 254.0], [-1.0, 2.0]]), inputs_axis=0)
    >>> matrix.values.tolist(), (matrix.values * matrix.scale)[:, 1].tolist()
    ([[64, 127], [-127, 1]], [254.0, 2.0])
    """
    return _rounded(parameter.astype(jnp.float32), inputs_axis)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _product(
    dtype: DTypeLike, x: Float[Array, "R D"], matrix: Float[Array, "D F"]
) -> Float[Array, "R F"]:
    """``x @ matrix``, rounded to ``dtype`` at once: where devices add up parts, they send that."""
    return jnp.matmul(x, matrix, preferred_element_type=dtype)


def _product_forward(
    dtype: DTypeLike, x: Array, matrix: Array
) -> tuple[Array, tuple[Array, Array]]:
    return _product(dtype, x, matrix), (x, matrix)


def _product_backward(
    dtype: DTypeLike, saved: tuple[Array, Array], gradient: Array
) -> tuple[Array, Array]:
    # Autodiff would multiply the float32 gradient with widened inputs, which is slow in bfloat16.
    x, matrix = saved
    gradient = gradient.astype(x.dtype)
    to_x = rows_by_rows(gradient, matrix, dtype)
    to_matrix = columns_by_columns(x, gradient)
    return to_x.astype(x.dtype), to_matrix.astype(matrix.dtype)


_product.defvjp(_product_forward, _product_backward)


def _int8_product(x: Float[Array, "R D"], matrix: Int8Matrix) -> Float[Array, "R F"]:
    # Inputs are rounded row by row, so that a row's result does not depend on the others.
    inputs = _rounded(x.astype(jnp.float32), 1)
    sums = jnp.matmul(inputs.values, matrix.values, preferred_element_type=jnp.int32)
    return sums.astype(jnp.float32) * (inputs.scale * matrix.scale)


def _rounded(values: Float[Array, "..."], axis: int) -> Int8Matrix:
    largest = jnp.abs(values).max(axis=axis, keepdims=True)
    scale = jnp.where(largest == 0, 1.0, largest / 127.0)
    return Int8Matrix(jnp.round(values / scale).astype(jnp.int8), scale)
