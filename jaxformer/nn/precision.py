"""Numeric formats of matrix multiplications: dtypes, and quantization to int8.

Inputs of a matmul are converted to the compute dtype, sums are float32, and results have the dtype
of the activations. The precision of float32 matmuls on accelerators is JAX's default: bfloat16 on
TPUs, TF32 on NVIDIA GPUs. ``JAX_DEFAULT_MATMUL_PRECISION=highest`` selects full float32.

Departs from the paper: "bfloat16", for training "float16" and "float8", and for decoding "int8",
all optional.
"""

import typing
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int8, Int32, PyTree

from jaxformer.errors import UserError
from jaxformer.nn.backend import backend
from jaxformer.nn.constants import ConstantMatrix, without_constants
from jaxformer.nn.parameters import ParameterInfo

ComputeDtype = Literal["float32", "bfloat16", "float16", "float8", "int8"]


class Int8Matrix(NamedTuple):
    """A parameter quantized to int8, with one scale per output: values * scale."""

    values: Int8[Array, "..."] | ConstantMatrix  # from -127 to 127
    scale: Float[Array, "..."]  # float32; the axis that is summed over has size 1
    # int32, with the shape of scale: sums of 128 * values, for the kernels that take inputs + 128
    offset: Int32[Array, "..."] | None = None


def at_least_float32(*arrays: PyTree) -> str:
    """Returns "float64" if an array is float64, as under ``jax_enable_x64``, else "float32".

    Softmax, sums and statistics of layer norms are computed in this dtype.
    """
    found = {jnp.result_type(leaf).name for leaf in jax.tree.leaves(arrays)}
    return "float64" if "float64" in found else "float32"


def matmul_dtype(compute_dtype: str, *arrays: PyTree) -> str:
    """Returns the dtype of inputs and parameters of a matmul that is not quantized.

    If one of the arrays is float64, "float32" means float64. With "float8", only matmuls with
    parameters are in float8, and all others in bfloat16.
    """
    if compute_dtype not in typing.get_args(ComputeDtype):
        choices = ", ".join(map(repr, typing.get_args(ComputeDtype)))
        raise UserError(f"expected compute_dtype to be {choices}, got {compute_dtype!r:.80}")

    if compute_dtype == "float8":
        return "bfloat16"
    if compute_dtype in ("bfloat16", "float16"):
        return compute_dtype
    return at_least_float32(*arrays)


def activation_dtype(compute_dtype: str, table: PyTree) -> str:
    """Returns the dtype of activations between layers, and of cached keys and values."""
    dtype = matmul_dtype(compute_dtype, table)
    if dtype in ("bfloat16", "float16") and backend().float32_activations:
        return "float32"
    return dtype


def quantize_along(values: Float[Array, "..."], axis: int) -> Int8Matrix:
    """Quantizes to int8; the largest magnitude along an axis becomes 127 or -127.

    >>> matrix = quantize_along(jnp.array([[0.5, 254.0], [-1.0, 2.0]]), axis=0)
    >>> matrix.values.tolist(), (matrix.values * matrix.scale)[:, 1].tolist()
    ([[64, 127], [-127, 1]], [254.0, 2.0])
    """
    values = values.astype(jnp.float32)
    largest = jnp.abs(values).max(axis=axis, keepdims=True)
    scale = jnp.where(largest == 0, 1.0, largest / 127.0)
    rounded = jnp.round(values / scale)
    return Int8Matrix(rounded.astype(jnp.int8), scale)


def with_offsets(params: PyTree) -> PyTree:
    """Adds offsets to int8 matrices, in a single process whose backend takes unsigned inputs."""

    def add_offset(leaf: Array | Int8Matrix) -> Array | Int8Matrix:
        if not isinstance(leaf, Int8Matrix):
            return leaf

        values = np.asarray(leaf.values)
        scale = leaf.scale
        axes = range(values.ndim)
        summed = tuple(i for i in axes if scale.shape[i] != values.shape[i])
        sums = values.sum(axis=summed, dtype=np.int32, keepdims=True)
        return leaf._replace(offset=jax.device_put(128 * sums))

    if not backend().unsigned_int8 or jax.process_count() > 1:
        return params
    return jax.tree.map(add_offset, params, is_leaf=_is_quantized)


def dequantize(params: PyTree) -> PyTree:
    """Converts each :class:`Int8Matrix` to a float32 array; other parameters are unchanged."""

    def convert(leaf: Array | Int8Matrix) -> Array:
        if not isinstance(leaf, Int8Matrix):
            return leaf
        values = without_constants(leaf.values)
        return values.astype(leaf.scale.dtype) * leaf.scale

    return jax.tree.map(convert, params, is_leaf=_is_quantized)


def cast_params(
    params: PyTree,
    info: PyTree,
    compute_dtype: str,
) -> PyTree:
    """Converts parameters to the format that decoding computes in; vectors stay float32.

    With "int8", matrices and tables become :class:`Int8Matrix`. With "bfloat16" and "float16",
    tables stay float32, because logits are computed in float32. Parameters that are already
    quantized are unchanged. ``info`` is from :func:`~jaxformer.nn.parameters.describe`.
    """
    leaves = jax.tree.leaves_with_path(info, is_leaf=lambda x: isinstance(x, ParameterInfo))
    infos = dict(leaves)

    def cast(path: jax.tree_util.KeyPath, leaf: Array | Int8Matrix) -> Array | Int8Matrix:
        role = infos[path].role
        axis = infos[path].summed_axis
        if isinstance(leaf, Int8Matrix) or axis is None:
            return leaf
        if compute_dtype == "int8":
            return quantize_along(leaf, axis)
        if role == "matrix":
            return leaf.astype(matmul_dtype(compute_dtype))
        return leaf

    return jax.tree.map_with_path(cast, params, is_leaf=_is_quantized)


def _is_quantized(leaf: Any) -> bool:
    return isinstance(leaf, Int8Matrix)
