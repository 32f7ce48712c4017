"""Matrix multiplication with a parameter, in the precision that a layer computes in.

On CPUs it is asking for a float32 result that brings the fast bfloat16 and int8 instructions;
accelerators sum in float32 anyway. Where devices sum a result, they send it in the activations'
dtype.
"""

import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from jaxformer.nn.matmul import matmul
from jaxformer.nn.precision import Int8Matrix, matmul_dtype, quantize_rows

# Name of the results of :func:`project` for rematerialization, which may keep them and compute the
# cheap rest again.
PRODUCT = "product"


def project(
    x: Float[Array, "*rows D"],
    kernel: Float[Array, "D ..."] | Int8Matrix,
    bias: Float[Array, "..."] | None = None,
    compute_dtype: str = "float32",
) -> Float[Array, "..."]:
    """Returns ``x @ kernel + bias`` over the last axis of x and the first of the kernel.

    The result, [*rows, *outputs], has the dtype of x. A kernel created with the role "matrix" (see
    :func:`~jaxformer.nn.parameters.parameter`) may be quantized to int8.
    """
    if isinstance(kernel, Int8Matrix):
        product = _int8_matmul(x, kernel)
    else:
        dtype = matmul_dtype(compute_dtype)
        product = matmul(x.astype(dtype), kernel.astype(dtype), x.dtype)
    product = checkpoint_name(product.astype(x.dtype), PRODUCT)
    return product if bias is None else product + bias.astype(x.dtype)


def _int8_matmul(x: Float[Array, "*rows D"], kernel: Int8Matrix) -> Float[Array, "..."]:
    # Inputs are quantized row by row, so that a row's result does not depend on the others.
    rows = x.reshape(-1, x.shape[-1]).astype(jnp.float32)
    inputs, matrix = quantize_rows(rows, 1), kernel.values.reshape(rows.shape[1], -1)
    sums = jnp.matmul(inputs.values, matrix, preferred_element_type=jnp.int32)
    product = sums.astype(jnp.float32) * (inputs.scale * kernel.scale.reshape(1, -1))
    return product.reshape(*x.shape[:-1], *kernel.values.shape[1:])
