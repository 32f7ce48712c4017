"""Metadata of parameters: axes for sharding, and roles for quantization."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.config import ModelConfig
from jaxformer.errors import UserError
from jaxformer.kinds.model_parameters import describe_model
from jaxformer.models.transformer import Transformer
from jaxformer.nn import FeedForward, ParameterInfo
from jaxformer.nn.precision import Int8Matrix, cast_params

from .weights import random_params

CONFIG = ModelConfig(
    **{"vocab_size": 13, "d_model": 8, "d_ff": 16, "num_heads": 2, "num_layers": 3},
    **{"norm_position": "pre", "positions": "learned", "biases": True},
    **{"embeddings": "separate", "max_length": 6},
)
MATRICES = {"query", "key", "value", "output", "inner", "outer"}
TABLES = {"src_embedding", "tgt_embedding", "output_embedding"}


def by_name(tree, leaf_type):
    leaves = jax.tree.leaves_with_path(tree, is_leaf=lambda leaf: isinstance(leaf, leaf_type))
    return {tuple(key.key for key in path): leaf for path, leaf in leaves}


TOKENS = np.ones((1, 1), np.int32)
PARAMS = random_params(Transformer(CONFIG), TOKENS, TOKENS)


def test_every_parameter_of_the_transformer_is_described():
    """Parameters are plain arrays: a box would add a key to a path."""
    info = by_name(describe_model(CONFIG), ParameterInfo)
    shapes = {path: leaf.shape for path, leaf in by_name(PARAMS, np.ndarray).items()}
    assert {path: len(fact.axes) for path, fact in info.items()} == {
        path: len(shape) for path, shape in shapes.items()
    }
    roles = {path: fact.role for path, fact in info.items()}
    assert {path[-1] for path, role in roles.items() if role == "matrix"} == MATRICES
    assert {path[-1] for path, role in roles.items() if role == "table"} == TABLES


def test_axes_have_the_sizes_of_their_names():
    sizes = {"d_model": 8, "d_ff": 16, "heads": 2, "vocab": 13}
    params = by_name(PARAMS, np.ndarray)
    for path, fact in by_name(describe_model(CONFIG), ParameterInfo).items():
        for name, size in zip(fact.axes, params[path].shape, strict=True):
            # The first axis of W^O combines heads and the size of a head.
            expected = 8 if path[-1] == "output" and name == "heads" else sizes.get(name, size)
            assert size == expected, path


def test_matrices_are_cast_and_vectors_stay():
    dtypes, info = ("float32", "bfloat16", "int8"), describe_model(CONFIG)
    cast = jax.jit(lambda params: {dtype: cast_params(params, info, dtype) for dtype in dtypes})
    for dtype, found in jax.device_get(cast(PARAMS)).items():
        found = by_name(found, Int8Matrix)
        for path, leaf in by_name(PARAMS, np.ndarray).items():
            if dtype == "int8" and path[-1] in MATRICES | TABLES:
                # Matmuls sum over axis 1 of stacked matrices, and over d_model of tables.
                largest = np.abs(leaf).max(axis=1, keepdims=True)
                np.testing.assert_allclose(found[path].scale, largest / 127, rtol=1e-6)
                error = np.abs(found[path].values * found[path].scale - leaf)
                assert (error <= 0.5001 * largest / 127).all()
            else:
                kept = "float32" if dtype == "int8" or path[-1] not in MATRICES else dtype
                assert found[path].dtype == kept
                np.testing.assert_array_equal(found[path], leaf.astype(kept))


def test_parameters_of_wrong_width_are_refused():
    layer, x = FeedForward(16), jnp.asarray(np.ones((1, 3, 8), np.float32))
    params = random_params(layer, x)
    with pytest.raises(UserError, match=r"'inner' of shape \(6, 16\).*one of shape \(8, 16\)"):
        layer.apply({"params": params}, x[:, :, :6])
