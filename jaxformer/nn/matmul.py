"""Matrix multiplications with fast gradients, under every JAX transformation.

Layers multiply with their parameters by :func:`project`. On CPUs, the fast instructions for
bfloat16 are used only by matmuls with a float32 result, and those for int8 with an int32 result;
accelerators sum in these dtypes anyway. Sums over devices are communicated in the dtype of the
activations.

Autodiff of a bfloat16 matmul with float32 results multiplies the float32 gradient with inputs
converted to float32. On CPUs that does not use the bfloat16 units. Such matmuls therefore have
primitives of their own, whose two transposes round the gradient to bfloat16 first: one with
parameters, one for attention. Matmuls with parameters in float16 or float8 have a third one, which
keeps the gradients of parameters in float32: sums over many tokens would overflow in float16. All
other matmuls are a plain ``dot_general``.
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
from jaxformer.nn.constants import ConstantMatrix
from jaxformer.nn.precision import Int8Matrix, at_least_float32, matmul_dtype, quantize_along
from jaxformer.nn.rounding import FORMATS, round_gradient, round_operand

# Checkpoint name of the results of :func:`project`, which rematerialization may keep.
MATMUL = "matmul"


def project(
    x: Float[Array, "*rows D"],
    kernel: Float[Array, "D ..."] | Int8Matrix | ConstantMatrix,
    bias: Float[Array, "..."] | None = None,
    compute_dtype: str = "float32",
) -> Float[Array, "..."]:
    """Returns ``x @ kernel + bias`` over the last axis of x and the first axis of the kernel.

    The result, ``[*rows, *outputs]``, has the dtype of x. A kernel with the role "matrix" (see
    :func:`~jaxformer.nn.parameters.parameter`) may be quantized to int8.
    """
    if isinstance(kernel, Int8Matrix):
        product = map_rows(int8_matmul, kernel, x)
    elif isinstance(kernel, ConstantMatrix):
        product = matmul(x.astype(kernel.flat.dtype), kernel, x.dtype)
    elif compute_dtype in FORMATS:
        multiply = functools.partial(rounded_matmul, compute_dtype=compute_dtype)
        product = map_rows(multiply, kernel, x)
    else:
        dtype = matmul_dtype(compute_dtype, x, kernel)
        product = matmul(x.astype(dtype), kernel.astype(dtype), x.dtype)

    product = checkpoint_name(product.astype(x.dtype), MATMUL)
    if bias is None:
        return product
    return product + expand_like(bias.astype(x.dtype), product)


def int8_matmul(
    kernel: Int8Matrix,
    x: Float[Array, "*rows D"],
    axis: int = 0,
) -> Array:
    """Returns the product over the last axis of ``x`` and an axis of the kernel.

    The axis is 0, or 1 for a kernel with two axes.
    """
    # Inputs have a scale per row, so that the result of a row does not depend on other rows.
    rows = x.reshape(-1, x.shape[-1])
    inputs = quantize_along(rows, 1)
    numbers: Any = inputs.values

    depth = x.shape[-1]
    num_outputs = math.prod(kernel.values.shape) // depth
    matrix_shape = (depth, num_outputs) if axis == 0 else (num_outputs, depth)
    matrix = kernel.values.reshape(*matrix_shape)

    if kernel.offset is None:
        sums = _int8_sums(numbers, matrix, axis=axis)
    else:
        # CPUs multiply uint8 by int8 fast. With int8 inputs, XLA would itself add 128 to them and
        # subtract sums of 128 * kernel, but compute these sums, our offset, in every call.
        as_uint8 = jax.lax.bitcast_convert_type(numbers, jnp.uint8)
        unsigned = as_uint8 ^ np.uint8(128)  # inputs + 128
        operands = match_varying_axes(unsigned, matrix)
        sums = _unsigned_matmul.bind(*operands, axis=axis)
        sums -= kernel.offset.reshape(1, -1)

    sums = sums.astype(jnp.float32)
    scale = inputs.scale * kernel.scale.reshape(1, -1)
    product = sums * scale
    outputs = [size for number, size in enumerate(kernel.values.shape) if number != axis]
    return product.reshape(*x.shape[:-1], *outputs)


def matmul(
    x: Float[Array, "*rows D"],
    kernel: Float[Array, "D ..."] | ConstantMatrix,
    dtype: DTypeLike,
) -> Array:
    """Returns the product over the last axis of ``x`` and the first of ``kernel``, in ``dtype``.

    Both have the dtype to multiply in. Rows are flattened to two dimensions, because on CPUs the
    gradient with respect to the kernel is much slower with three. On a mesh with explicit axes
    nothing is flattened, because JAX cannot merge a sharded axis with another.
    """
    is_constant = isinstance(kernel, ConstantMatrix)  # of a program for a single device
    if not is_constant and has_explicit_axes(x, kernel):
        return jnp.tensordot(x, kernel, 1, preferred_element_type=dtype)

    *leading, size = x.shape
    _, *outputs = kernel.shape
    # Explicit sizes, since reshape cannot infer -1 for an array without elements.
    rows = x.reshape(math.prod(leading), size)
    matrix = kernel.reshape(size, math.prod(outputs))

    if x.dtype == jnp.bfloat16 and dtype == jnp.float32:
        operands = match_varying_axes(rows, matrix)
        product: Array = _bfloat16_matmul.bind(*operands)
    else:
        product = jnp.matmul(rows, matrix, preferred_element_type=dtype)
    return product.reshape(*leading, *outputs)


def rounded_matmul(
    kernel: Float[Array, "D ..."],
    x: Float[Array, "*rows D"],
    compute_dtype: str,
) -> Array:
    """Returns the product over the last axis of ``x`` and the first of ``kernel``, in x's dtype.

    Both operands are rounded to "float16" or "float8", and so are the gradients of the result. The
    gradients of the operands have the dtypes of the operands.
    """
    *leading, size = x.shape
    _, *outputs = kernel.shape
    rows = x.reshape(math.prod(leading), size)
    matrix = kernel.reshape(size, math.prod(outputs))

    operands = match_varying_axes(rows, matrix)
    product: Array = _rounded_matmul.bind(*operands, compute_dtype=compute_dtype)
    return product.reshape(*leading, *outputs)


def matmul_nt(
    x: Num[Array, "*rows D"],
    table: Num[Array, "V D"],
    dtype: DTypeLike | None = None,
) -> Num[Array, "*rows V"]:
    """Returns ``x @ table.T``, in float32 or float64 when ``dtype`` is None.

    With a transpose, XLA would not use the CPU's bfloat16 units.
    """
    dtype = dtype or at_least_float32(x, table)
    if has_explicit_axes(x, table):
        return jnp.einsum("...d,vd->...v", x, table, preferred_element_type=dtype)

    *leading, size = x.shape
    rows = x.reshape(math.prod(leading), size)
    product = jnp.einsum("rd,vd->rv", rows, table, preferred_element_type=dtype)
    return product.reshape(*leading, table.shape[0])


def matmul_tn(
    a: Float[Array, "R D"],
    b: Float[Array, "R F"],
) -> Float[Array, "D F"]:
    """Returns ``a.T @ b``, float32 or float64."""
    transposed = a.T if has_explicit_axes(a, b) else _transpose.bind(a)
    dtype = at_least_float32(a, b)
    return jnp.matmul(transposed, b, preferred_element_type=dtype)


def einsum(
    spec: str,
    x: Array,
    y: Array,
    dtype: DTypeLike | None = None,
) -> Array:
    """Returns ``jnp.einsum(spec, x, y)`` in float32 or float64, for the two matmuls of attention.

    Multiplies in ``dtype``, or in the dtype of the operands when None.
    """
    dtype = jnp.dtype(dtype or x.dtype)
    is_rounded = dtype.itemsize == 2 and x.dtype == jnp.float32
    if is_rounded and not has_explicit_axes(x, y):
        operands = match_varying_axes(x, y)
        return _rounding_einsum.bind(*operands, spec=spec, dtype=dtype.name)
    return _einsum(x, y, spec=spec)


# The two matmuls of attention, for queries at t, and keys and values at s.
SCORES = "bthk,bshk->bhts"
WEIGHTED_SUM = "bhts,bshv->bthv"
# The gradients with respect to the first and the second operand. XLA has bfloat16 kernels for these
# orders of operands, and raises an error for others (jax 0.10.2, CPU).
_GRADIENTS = {
    SCORES: ("bhts,bshk->bthk", "bhts,bthk->bshk"),
    WEIGHTED_SUM: ("bthv,bshv->bhts", "bhts,bthv->bshv"),
}


def _einsum(x: Array, y: Array, *, spec: str) -> Array:
    dtype = at_least_float32(x, y)
    return jnp.einsum(spec, x, y, preferred_element_type=dtype)


# Operands are float32 and rounded inside: on CPUs XLA stacks bfloat16 residuals of all layers in
# memory, in float32, and then slices them again (jax 0.10.2).
def _rounded_einsum(x: Array, y: Array, *, spec: str, dtype: str) -> Array:
    if jax.__version_info__ < (0, 8):  # jaxlib 0.7.2 lacks the kernels for CPUs.
        return _rounded_einsum_in_float32(x, y, spec=spec, dtype=dtype)

    x = x.astype(dtype)
    y = y.astype(dtype)
    return _einsum(x, y, spec=spec)


def _rounded_einsum_in_float32(
    x: Array,
    y: Array,
    *,
    spec: str,
    dtype: str,
) -> Array:
    # bfloat16 has 8 bits of exponent and 7 of mantissa, float16 5 and 10.
    bits = jnp.finfo(dtype)
    x = jax.lax.reduce_precision(x, exponent_bits=bits.nexp, mantissa_bits=bits.nmant)
    y = jax.lax.reduce_precision(y, exponent_bits=bits.nexp, mantissa_bits=bits.nmant)
    return _einsum(x, y, spec=spec)


# In the functions of gradients, the operand of type Any is an ``UndefinedPrimal``, without a value.
def _gradient_by_first(
    gradient: Array,
    x: Any,
    y: Array,
    *,
    spec: str,
    dtype: str,
) -> Array:
    gradient_spec, _ = _GRADIENTS[spec]
    return _rounded_einsum(gradient, y, spec=gradient_spec, dtype=dtype)


def _gradient_by_second(
    gradient: Array,
    x: Array,
    y: Any,
    *,
    spec: str,
    dtype: str,
) -> Array:
    _, gradient_spec = _GRADIENTS[spec]
    if spec == WEIGHTED_SUM:  # Its second gradient has the operands in the other order.
        return _rounded_einsum(x, gradient, spec=gradient_spec, dtype=dtype)
    return _rounded_einsum(gradient, x, spec=gradient_spec, dtype=dtype)


def _batched_einsum(
    operands: tuple[Array, Array],
    axes: tuple,
    *,
    spec: str,
    dtype: str,
) -> tuple[Array, int]:
    """Batches by an einsum in float32, because XLA lacks bfloat16 kernels for some orders."""
    multiply = functools.partial(_rounded_einsum_in_float32, spec=spec, dtype=dtype)
    batched = jax.vmap(multiply, axes)
    return batched(*operands), 0


def _abstract_einsum(x: Any, y: Any, *, spec: str, dtype: str) -> Any:
    """Returns the shape of the result: the size of each of its letters."""
    operands, result = spec.split("->")
    letters = operands.replace(",", "")
    lengths = (*x.shape, *y.shape)
    sizes = dict(zip(letters, lengths, strict=True))
    shape = tuple(sizes[letter] for letter in result)
    return x.update(shape=shape, weak_type=False)


def _define_impl(primitive: Primitive, *static: str) -> None:
    """Makes calls outside of ``jax.jit`` run the compiled primitive, with static options."""
    compiled = jax.jit(primitive.bind, static_argnames=static)

    def run(*operands: Array, **options: Any) -> Array:
        # With jit disabled, bind would call this function again, and so on.
        with jax.disable_jit(False):
            return compiled(*operands, **options)

    primitive.def_impl(run)


# benchmarks/train.py measures the speed of both bfloat16 primitives (docs/log/2026.md, 2026-11-23).
_rounding_einsum = Primitive("rounding_einsum")
_define_impl(_rounding_einsum, "spec", "dtype")
_rounding_einsum.def_abstract_eval(_abstract_einsum)
mlir.register_lowering(_rounding_einsum, mlir.lower_fun(_rounded_einsum, multiple_results=False))
ad.defbilinear(_rounding_einsum, _gradient_by_first, _gradient_by_second)
batching.primitive_batchers[_rounding_einsum] = _batched_einsum


def _multiply(
    x: Float[Array, "R D"],
    matrix: Float[Array, "D F"],
) -> Float[Array, "R F"]:
    return jnp.matmul(x, matrix, preferred_element_type=jnp.float32)


def _gradient_by_rows(gradient: Array, x: Any, matrix: Array) -> Array:
    rounded = gradient.astype(matrix.dtype)
    return matmul_nt(rounded, matrix).astype(matrix.dtype)


def _gradient_by_matrix(gradient: Array, x: Array, matrix: Any) -> Array:
    rounded = gradient.astype(x.dtype)
    return matmul_tn(x, rounded).astype(x.dtype)


def _rounded_product(
    x: Float[Array, "R D"],
    matrix: Float[Array, "D F"],
    *,
    compute_dtype: str,
) -> Float[Array, "R F"]:
    return jnp.matmul(
        round_operand(x, compute_dtype),
        round_operand(matrix, compute_dtype),
        preferred_element_type=x.dtype,
    )


def _rounded_gradient_by_rows(
    gradient: Array,
    x: Any,
    matrix: Array,
    *,
    compute_dtype: str,
) -> Array:
    rounded = round_gradient(gradient, compute_dtype)
    product = matmul_nt(rounded, round_operand(matrix, compute_dtype))
    return product.astype(x.aval.dtype)


def _rounded_gradient_by_matrix(
    gradient: Array,
    x: Array,
    matrix: Any,
    *,
    compute_dtype: str,
) -> Array:
    rounded = round_gradient(gradient, compute_dtype)
    product = matmul_tn(round_operand(x, compute_dtype), rounded)
    return product.astype(matrix.aval.dtype)


def _lower_transpose(context: mlir.LoweringRuleContext, x: Any) -> Sequence:
    # XLA has no fast matmul for CPUs with a transposed first operand, and is slow to transpose as a
    # part of a matmul over several axes. The layout makes it write the transpose to memory first.
    is_export = context.module_context.lowering_parameters.for_export

    def transpose(x: Array) -> Array:
        if is_export:  # JAX cannot export layouts.
            return x.T
        return with_layout_constraint(x.T, Layout((0, 1)))

    return mlir.lower_fun(transpose, multiple_results=False)(context, x)


def _abstract_transpose(x: Any) -> Any:
    return x.update(shape=x.shape[::-1], weak_type=False)


def _batched_transpose(operands: tuple[Array], axes: tuple) -> tuple[Array, int]:
    [x] = operands
    [axis] = axes
    matrices = jnp.moveaxis(x, axis, 0)
    return matrices.mT, 0


_transpose = Primitive("transpose_in_memory")  # jax has a "transpose"
_define_impl(_transpose)
_transpose.def_abstract_eval(_abstract_transpose)
mlir.register_lowering(_transpose, mlir.lower_fun(jnp.transpose, multiple_results=False))
mlir.register_lowering(_transpose, _lower_transpose, platform="cpu")
ad.deflinear2(_transpose, lambda gradient, x: [_transpose.bind(gradient)])
batching.primitive_batchers[_transpose] = _batched_transpose


def _int8_sums(
    x: Integer[Array, "R D"],
    matrix: Int8[Array, "..."],
    *,
    axis: int,
) -> Array:
    contracted = ((1,), (axis,))
    no_batch = ((), ())
    dimensions = (contracted, no_batch)
    return jax.lax.dot_general(x, matrix, dimensions, preferred_element_type=jnp.int32)


def _lower_unsigned(
    context: mlir.LoweringRuleContext,
    x: Any,
    matrix: Any,
    *,
    axis: int,
) -> list:
    # jax.lax.dot_general widens both operands to int32, and then XLA misses its kernel.
    dimensions = stablehlo.DotDimensionNumbers.get(
        lhs_batching_dimensions=[],
        rhs_batching_dimensions=[],
        lhs_contracting_dimensions=[1],
        rhs_contracting_dimensions=[axis],
    )
    [sums] = context.avals_out
    result = ir.RankedTensorType.get(sums.shape, ir.IntegerType.get_signless(32))
    return [stablehlo.dot_general(result, x, matrix, dimensions)]


def _matmul_primitive(
    name: str,
    dtype: str | None,
    function: Callable[..., Array],
) -> Primitive:
    """Returns a primitive whose lowering is ``function``, and whose results have ``dtype``.

    When ``dtype`` is None, results have the dtype of the rows. The function multiplies rows,
    [R, D], with a matrix, [D, F], or [F, D] if its option ``axis``, the axis of the matrix that is
    summed over, is 1.
    """

    def abstract(x: Any, matrix: Any, axis: int = 0, **_: Any) -> Any:
        num_rows = x.shape[0]
        outputs = matrix.shape[1 - axis]
        shape = (num_rows, outputs)
        return x.update(shape=shape, dtype=jnp.dtype(dtype or x.dtype), weak_type=False)

    def batch(operands: tuple[Array, Array], axes: tuple, **options: Any) -> tuple[Array, int]:
        """Batches over rows by flattening them, and over matrices by a plain batched matmul."""
        x, matrix = operands
        x_axis, matrix_axis = axes
        if matrix_axis is not None:
            multiply = functools.partial(function, **options)
            batched = jax.vmap(multiply, axes)
            return batched(x, matrix), 0

        x = jnp.moveaxis(x, x_axis, 0)
        batch_size, num_rows, size = x.shape
        rows = x.reshape(-1, size)
        product = primitive.bind(rows, matrix, **options)
        return product.reshape(batch_size, num_rows, -1), 0

    primitive = Primitive(name)
    _define_impl(primitive, "axis", "compute_dtype")
    primitive.def_abstract_eval(abstract)
    mlir.register_lowering(primitive, mlir.lower_fun(function, multiple_results=False))
    batching.primitive_batchers[primitive] = batch
    return primitive


_bfloat16_matmul = _matmul_primitive("bfloat16_matmul", "float32", _multiply)
ad.defbilinear(_bfloat16_matmul, _gradient_by_rows, _gradient_by_matrix)
_rounded_matmul = _matmul_primitive("rounded_matmul", None, _rounded_product)
ad.defbilinear(_rounded_matmul, _rounded_gradient_by_rows, _rounded_gradient_by_matrix)
_unsigned_matmul = _matmul_primitive("unsigned_matmul", "int32", _int8_sums)
mlir.register_lowering(_unsigned_matmul, _lower_unsigned, platform="cpu")
