"""Matrix multiplications with fast gradients, under every JAX transformation.

Layers multiply with their parameters by :func:`project`. On CPUs only matmuls with a float32 result
use the fast bfloat16 and int8 instructions; accelerators sum in float32 anyway. Sums over devices
are communicated in the dtype of the activations.

Autodiff of a bfloat16 matmul with float32 results multiplies the float32 gradient with inputs
converted to float32. On CPUs that does not use the bfloat16 units. Such matmuls therefore have
primitives of their own, whose two transposes round the gradient to bfloat16 first: one with
parameters, one for attention. All other matmuls are a plain ``dot_general``.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.layout import Layout, with_layout_constraint
from jax.extend.core import Primitive
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import ad, batching, mlir
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int8, Integer, Num

from jaxformer.layout import expand_like, has_explicit_axes, map_rows, match_varying_axes
from jaxformer.nn.precision import Int8Matrix, at_least_float32, matmul_dtype, quantize_along

# Checkpoint name of the results of :func:`project`, which rematerialization may keep.
MATMUL = "matmul"


def project(
    x: Float[Array, "*rows D"],
    kernel: Float[Array, "D ..."] | Int8Matrix,
    bias: Float[Array, "..."] | None = None,
    compute_dtype: str = "float32",
) -> Float[Array, "..."]:
    """Returns ``x @ kernel + bias`` over the last axis of x and the first axis of the kernel.

    The result, ``[*rows, *outputs]``, has the dtype of x. A kernel with the role "matrix" (see
    :func:`~jaxformer.nn.parameters.parameter`) may be quantized to int8.
    """
    if isinstance(kernel, Int8Matrix):
        product = map_rows(int8_matmul, kernel, x)
    else:
        dtype = matmul_dtype(compute_dtype, x, kernel)
        product = matmul(x.astype(dtype), kernel.astype(dtype), x.dtype)
    product = checkpoint_name(product.astype(x.dtype), MATMUL)
    return product if bias is None else product + expand_like(bias.astype(x.dtype), product)


def int8_matmul(kernel: Int8Matrix, x: Float[Array, "*rows D"], axis: int = 0) -> Array:
    """Returns the product over the last axis of x and an axis of the kernel, the first or last."""
    # Inputs have a scale per row, so that the result of a row does not depend on other rows.
    inputs = quantize_along(x.reshape(-1, x.shape[-1]), 1)
    matrix = kernel.values.reshape(x.shape[-1], -1) if axis == 0 else kernel.values
    if kernel.offset is None:
        sums = _int8_sums(inputs.values, matrix, axis=axis)
    else:
        # u8 x s8 is a fast instruction. XLA would add 128 itself, and sum the kernel every time.
        unsigned = jax.lax.bitcast_convert_type(inputs.values, jnp.uint8) ^ np.uint8(128)
        sums = _unsigned_matmul.bind(*match_varying_axes(unsigned, matrix), axis=axis)
        sums -= kernel.offset.reshape(1, -1)
    product = sums.astype(jnp.float32) * (inputs.scale * kernel.scale.reshape(1, -1))
    return product.reshape(*x.shape[:-1], *np.delete(kernel.values.shape, axis))


def matmul(x: Float[Array, "*rows D"], kernel: Float[Array, "D ..."], dtype: DTypeLike) -> Array:
    """Returns the product over the last axis of ``x`` and the first of ``kernel``, in ``dtype``.

    Both have the dtype to multiply in. Rows are flattened to two dimensions, because on CPUs the
    gradient with respect to the kernel is much slower with three. On a mesh with explicit axes
    nothing is flattened, because JAX cannot merge a sharded axis with another.
    """
    if has_explicit_axes(x, kernel):
        return jnp.tensordot(x, kernel, 1, preferred_element_type=dtype)
    # Explicit sizes, since reshape cannot infer -1 for an array without elements.
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    matrix = kernel.reshape(kernel.shape[0], math.prod(kernel.shape[1:]))
    if x.dtype == jnp.bfloat16 and dtype == jnp.float32:
        product: Array = _bfloat16_matmul.bind(*match_varying_axes(rows, matrix))
    else:
        product = jnp.matmul(rows, matrix, preferred_element_type=dtype)
    return product.reshape(*x.shape[:-1], *kernel.shape[1:])


def matmul_nt(
    x: Num[Array, "*rows D"], table: Num[Array, "V D"], dtype: DTypeLike | None = None
) -> Num[Array, "*rows V"]:
    """Returns ``x @ table.T``, in float32 or float64 when ``dtype`` is None.

    With a transpose, XLA would not use the CPU's bfloat16 units.
    """
    dtype = dtype or at_least_float32(x, table)
    if has_explicit_axes(x, table):
        return jnp.einsum("...d,vd->...v", x, table, preferred_element_type=dtype)
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    product = jnp.einsum("rd,vd->rv", rows, table, preferred_element_type=dtype)
    return product.reshape(*x.shape[:-1], table.shape[0])


def matmul_tn(a: Float[Array, "R D"], b: Float[Array, "R F"]) -> Float[Array, "D F"]:
    """Returns ``a.T @ b``, float32 or float64."""
    transposed = a.T if has_explicit_axes(a, b) else _transpose.bind(a)
    return jnp.matmul(transposed, b, preferred_element_type=at_least_float32(a, b))


def einsum(spec: str, x: Array, y: Array, dtype: DTypeLike | None = None) -> Array:
    """Returns ``jnp.einsum(spec, x, y)`` in float32 or float64, for the two matmuls of attention.

    Multiplies in ``dtype``, or in the dtype of the operands when None.
    """
    dtype = jnp.dtype(dtype or x.dtype)
    if dtype == jnp.bfloat16 and x.dtype == jnp.float32 and not has_explicit_axes(x, y):
        return _bfloat16_einsum.bind(*match_varying_axes(x, y), spec=spec)
    return _einsum(x, y, spec=spec)


SCORES, WEIGHTED_SUM = "bthk,bshk->bhts", "bhts,bshv->bthv"
# The gradients with respect to the two operands. XLA has bfloat16 kernels for these orders of
# operands, and raises an error for others (jax 0.10.2, CPU).
_GRADIENTS = {
    SCORES: ("bhts,bshk->bthk", "bhts,bthk->bshk"),
    WEIGHTED_SUM: ("bthv,bshv->bhts", "bhts,bthv->bshv"),
}


def _einsum(x: Array, y: Array, *, spec: str) -> Array:
    return jnp.einsum(spec, x, y, preferred_element_type=at_least_float32(x, y))


# Operands are float32 and rounded inside: on CPUs XLA stacks bfloat16 residuals of all layers in
# memory, in float32, and then slices them again (jax 0.10.2).
def _rounded_einsum(x: Array, y: Array, *, spec: str) -> Array:
    if jax.__version_info__ < (0, 8):  # jaxlib 0.7.2 lacks the kernels for CPUs.
        return _rounded_einsum_in_float32(x, y, spec=spec)
    return _einsum(x.astype(jnp.bfloat16), y.astype(jnp.bfloat16), spec=spec)


def _rounded_einsum_in_float32(x: Array, y: Array, *, spec: str) -> Array:
    x, y = (jax.lax.reduce_precision(a, 8, 7) for a in (x, y))
    return _einsum(x, y, spec=spec)


def _gradient_by_first(gradient: Array, x: Any, y: Array, *, spec: str) -> Array:
    return _rounded_einsum(gradient, y, spec=_GRADIENTS[spec][0])


def _gradient_by_second(gradient: Array, x: Array, y: Any, *, spec: str) -> Array:
    operands = (x, gradient) if spec == WEIGHTED_SUM else (gradient, x)
    return _rounded_einsum(*operands, spec=_GRADIENTS[spec][1])


def _batched_einsum(operands: tuple[Array, Array], axes: tuple, *, spec: str) -> tuple[Array, int]:
    """Batches by an einsum in float32, because XLA lacks bfloat16 kernels for some orders."""
    einsum = functools.partial(_rounded_einsum_in_float32, spec=spec)
    return jax.vmap(einsum, axes)(*operands), 0


def _abstract_einsum(x: Any, y: Any, *, spec: str) -> Any:
    operands, result = spec.split("->")
    sizes = dict(zip(operands.replace(",", ""), (*x.shape, *y.shape), strict=True))
    return x.update(shape=tuple(sizes[axis] for axis in result), weak_type=False)


def _define_impl(primitive: Primitive, *static: str) -> None:
    """Makes calls outside of ``jax.jit`` run the compiled primitive."""
    compiled = jax.jit(primitive.bind, static_argnames=static)

    def run(*operands: Array, **options: Any) -> Array:
        # With jit disabled, bind would call this function again, and so on.
        with jax.disable_jit(False):
            return compiled(*operands, **options)

    primitive.def_impl(run)


# benchmarks/train.py measures the speed of both primitives (docs/LOG.md, 2026-11-23).
_bfloat16_einsum = Primitive("bfloat16_einsum")
_define_impl(_bfloat16_einsum, "spec")
_bfloat16_einsum.def_abstract_eval(_abstract_einsum)
mlir.register_lowering(_bfloat16_einsum, mlir.lower_fun(_rounded_einsum, multiple_results=False))
ad.defbilinear(_bfloat16_einsum, _gradient_by_first, _gradient_by_second)
batching.primitive_batchers[_bfloat16_einsum] = _batched_einsum


def _multiply(x: Float[Array, "R D"], matrix: Float[Array, "D F"]) -> Float[Array, "R F"]:
    return jnp.matmul(x, matrix, preferred_element_type=jnp.float32)


def _gradient_by_rows(gradient: Array, x: Any, matrix: Array) -> Array:
    return matmul_nt(gradient.astype(matrix.dtype), matrix).astype(matrix.dtype)


def _gradient_by_matrix(gradient: Array, x: Array, matrix: Any) -> Array:
    return matmul_tn(x, gradient.astype(x.dtype)).astype(x.dtype)


def _lower_transpose(context: mlir.LoweringRuleContext, x: Any) -> Sequence:
    # XLA has no fast matmul for CPUs with a transposed first operand, and is slow to transpose as a
    # part of a matmul over several axes. The layout makes it write the transpose to memory first.
    exports = context.module_context.lowering_parameters.for_export  # JAX exports no layouts.

    def transpose(x: Array) -> Array:
        return x.T if exports else with_layout_constraint(x.T, Layout((0, 1)))

    return mlir.lower_fun(transpose, multiple_results=False)(context, x)


_transpose = Primitive("transpose_in_memory")  # jax has a "transpose"
_define_impl(_transpose)
_transpose.def_abstract_eval(lambda x: x.update(shape=x.shape[::-1], weak_type=False))
mlir.register_lowering(_transpose, mlir.lower_fun(jnp.transpose, multiple_results=False))
mlir.register_lowering(_transpose, _lower_transpose, platform="cpu")
ad.deflinear2(_transpose, lambda gradient, x: [_transpose.bind(gradient)])
batching.primitive_batchers[_transpose] = lambda x, at: (jnp.moveaxis(x[0], at[0], 0).mT, 0)


def _int8_sums(x: Integer[Array, "R D"], matrix: Int8[Array, "..."], *, axis: int) -> Array:
    dimensions = (((1,), (axis,)), ((), ()))
    return jax.lax.dot_general(x, matrix, dimensions, preferred_element_type=jnp.int32)


def _lower_unsigned(context: mlir.LoweringRuleContext, x: Any, matrix: Any, *, axis: int) -> list:
    # jax.lax.dot_general widens both operands to int32, and then XLA misses its kernel.
    dimensions = stablehlo.DotDimensionNumbers.get([], [], [1], [axis])
    result = ir.RankedTensorType.get(context.avals_out[0].shape, ir.IntegerType.get_signless(32))
    return [stablehlo.dot_general(result, x, matrix, dimensions)]


def _matmul_primitive(name: str, dtype: str, function: Callable[..., Array]) -> Primitive:
    """Returns a primitive of ``function``, a matmul of rows with a matrix, and its result dtype."""

    def abstract(x: Any, matrix: Any, axis: int = 0) -> Any:
        shape = x.shape[0], matrix.shape[1 - axis]
        return x.update(shape=shape, dtype=jnp.dtype(dtype), weak_type=False)

    def batch(operands: tuple[Array, Array], axes: tuple, **options: Any) -> tuple[Array, int]:
        """Batches over rows by flattening them, and over matrices by a plain batched matmul."""
        (x, matrix), (axis, matrix_axis) = operands, axes
        if matrix_axis is not None:
            return jax.vmap(functools.partial(function, **options), axes)(x, matrix), 0
        x = jnp.moveaxis(x, axis, 0)
        product = primitive.bind(x.reshape(-1, x.shape[-1]), matrix, **options)
        return product.reshape(*x.shape[:2], -1), 0

    primitive = Primitive(name)
    _define_impl(primitive, "axis")
    primitive.def_abstract_eval(abstract)
    mlir.register_lowering(primitive, mlir.lower_fun(function, multiple_results=False))
    batching.primitive_batchers[primitive] = batch
    return primitive


_bfloat16_matmul = _matmul_primitive("bfloat16_matmul", "float32", _multiply)
ad.defbilinear(_bfloat16_matmul, _gradient_by_rows, _gradient_by_matrix)
_unsigned_matmul = _matmul_primitive("unsigned_matmul", "int32", _int8_sums)
mlir.register_lowering(_unsigned_matmul, _lower_unsigned, platform="cpu")
