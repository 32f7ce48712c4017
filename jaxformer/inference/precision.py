"""Parameters in the precision that a model computes in: fewer bytes, faster products."""

import functools

import jax
from jaxtyping import PyTree

from jaxformer.config import ModelConfig
from jaxformer.nn.projection import Int8Matrix, product_dtype, quantise

# Every parameter that a matrix product takes in attention and in the feed-forward networks. In all
# of them, and in embeddings, axis 1 is summed over; axis 0 is the layer, or the token.
_MATRICES = ("query", "key", "value", "output", "inner", "outer")
_INPUTS_AXIS = 1


@functools.partial(jax.jit, static_argnums=0)
def prepare_params(config: ModelConfig, params: PyTree) -> PyTree:
    """The parameters with every matrix in ``config.compute_dtype``; the others stay float32.

    With "int8" each matrix becomes an :class:`~jaxformer.nn.projection.Int8Matrix`, embeddings too;
    with "bfloat16" these stay float32, as logits are computed in it. Matrices that are rounded
    already stay as they are.

    Args:
      config: The architecture.
      params: Parameters of ``Transformer(config)``.
    """

    def convert(path: jax.tree_util.KeyPath, leaf):
        name = path[-1].key
        if isinstance(leaf, Int8Matrix):
            return leaf
        if config.compute_dtype == "int8" and (name in _MATRICES or name.endswith("embedding")):
            return quantise(leaf, _INPUTS_AXIS)
        return leaf.astype(product_dtype(config)) if name in _MATRICES else leaf

    return jax.tree.map_with_path(
        convert, params, is_leaf=lambda leaf: isinstance(leaf, Int8Matrix)
    )
