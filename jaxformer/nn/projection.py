"""Matrix multiplication with a parameter, in the compute dtype of a layer.

On CPUs only matmuls with a float32 result use the fast bfloat16 and int8 instructions; accelerators
sum in float32 anyway. Sums over devices are communicated in the dtype of the activations.
"""

import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from jaxformer.layout import expand_like, map_rows
from jaxformer.nn.matmul import matmul
from jaxformer.nn.precision import Int8Matrix, matmul_dtype, quantize_along

# Checkpoint name of the results of :func:`project`, which rematerialization may keep while it
# recomputes the cheap rest.
PRODUCT = "product"


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
        product = map_rows(_int8_matmul, kernel, x)
    else:
        dtype = matmul_dtype(compute_dtype, x, kernel)
        product = matmul(x.astype(dtype), kernel.astype(dtype), x.dtype)
    product = checkpoint_name(product.astype(x.dtype), PRODUCT)
    return product if bias is None else product + expand_like(bias.astype(x.dtype), product)


def _int8_matmul(kernel: Int8Matrix, x: Float[Array, "*rows D"]) -> Float[Array, "..."]:
    # Inputs have a scale per row, so that the result of a row does not depend on other rows.
    inputs = quantize_along(x.reshape(-1, x.shape[-1]), 1)
    matrix = kernel.values.reshape(x.shape[-1], -1)
    sums = jnp.matmul(inputs.values, matrix, preferred_element_type=jnp.int32)
    product = sums.astype(jnp.float32) * (inputs.scale * kernel.scale.reshape(1, -1))
    return product.reshape(*x.shape[:-1], *kernel.values.shape[1:])
