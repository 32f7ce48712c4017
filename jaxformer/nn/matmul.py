"""Matrix multiplications with fast gradients, under every JAX transformation.

Autodiff of a bfloat16 matmul with float32 results multiplies the float32 gradient with inputs
converted to float32. On CPUs that does not use the bfloat16 units. Such matmuls therefore have a
primitive of their own, whose two transposes round the gradient to bfloat16 first. All other matmuls
are a plain ``dot_general``.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Num

from jaxformer.layout import has_explicit_axes, vary_alike


def matmul(x: Float[Array, "*rows D"], kernel: Float[Array, "D ..."], dtype: DTypeLike) -> Array:
    """Returns the product over the last axis of ``x`` and the first of ``kernel``, in ``dtype``.

    Rows are flattened to two dimensions, because on CPUs the gradient with respect to the kernel is
    much slower with three. On a mesh with explicit axes nothing is flattened, because JAX cannot
    merge a sharded axis with another.

    Args:
      x: Activations, in the dtype to multiply in.
      kernel: Weights, in the same dtype.
      dtype: Dtype of the result, [*rows, *outputs].
    """
    if has_explicit_axes(x, kernel):
        return jnp.tensordot(x, kernel, 1, preferred_element_type=dtype)
    rows, matrix = x.reshape(-1, x.shape[-1]), kernel.reshape(kernel.shape[0], -1)
    if x.dtype == jnp.bfloat16 and dtype == jnp.float32:
        product: Array = _bfloat16_matmul.bind(*vary_alike(rows, matrix))
    else:
        product = jnp.matmul(rows, matrix, preferred_element_type=dtype)
    return product.reshape(*x.shape[:-1], *kernel.shape[1:])


def matmul_nt(
    x: Num[Array, "*rows D"], table: Num[Array, "V D"], dtype: DTypeLike = jnp.float32
) -> Num[Array, "*rows V"]:
    """Returns ``x @ table.T``. With a transpose, XLA would not use the CPU's bfloat16 units."""
    if has_explicit_axes(x, table):
        return jnp.einsum("...d,vd->...v", x, table, preferred_element_type=dtype)
    rows = x.reshape(-1, x.shape[-1])
    product = jnp.einsum("rd,vd->rv", rows, table, preferred_element_type=dtype)
    return product.reshape(*x.shape[:-1], -1)


def matmul_tn(a: Float[Array, "R D"], b: Float[Array, "R F"]) -> Float[Array, "D F"]:
    """Returns ``a.T @ b``, float32.

    XLA uses the CPU's bfloat16 units to contract two axes, but not one; so the rows are split in
    two.
    """
    halves = 2 if a.shape[0] % 2 == 0 else 1
    a, b = (m.reshape(halves, -1, m.shape[1]) for m in (a, b))
    return jnp.einsum("hrd,hrf->df", a, b, preferred_element_type=jnp.float32)


def _multiply(x: Float[Array, "R D"], matrix: Float[Array, "D F"]) -> Float[Array, "R F"]:
    return jnp.matmul(x, matrix, preferred_element_type=jnp.float32)


def _gradient_by_rows(gradient: Array, x: Any, matrix: Array) -> Array:
    return matmul_nt(gradient.astype(matrix.dtype), matrix).astype(matrix.dtype)


def _gradient_by_matrix(gradient: Array, x: Array, matrix: Any) -> Array:
    return matmul_tn(x, gradient.astype(x.dtype)).astype(x.dtype)


def _batched(operands: tuple[Array, Array], axes: tuple) -> tuple[Array, int]:
    """Batches over rows by flattening them, and over matrices by a plain batched matmul."""
    (x, matrix), (axis, matrix_axis) = operands, axes
    if matrix_axis is not None:
        return jax.vmap(_multiply, axes)(x, matrix), 0
    x = jnp.moveaxis(x, axis, 0)
    product = _bfloat16_matmul.bind(x.reshape(-1, x.shape[-1]), matrix)
    return product.reshape(*x.shape[:2], -1), 0


# benchmarks/train.py measures the speed (docs/LOG.md, 2026-11-23).
_bfloat16_matmul = Primitive("bfloat16_matmul")
_bfloat16_matmul.def_impl(jax.jit(_multiply))
_bfloat16_matmul.def_abstract_eval(
    lambda x, matrix: x.update(
        shape=(x.shape[0], matrix.shape[1]), dtype=jnp.dtype("float32"), weak_type=False
    )
)
mlir.register_lowering(_bfloat16_matmul, mlir.lower_fun(_multiply, multiple_results=False))
ad.defbilinear(_bfloat16_matmul, _gradient_by_rows, _gradient_by_matrix)
batching.primitive_batchers[_bfloat16_matmul] = _batched
