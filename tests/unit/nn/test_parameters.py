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
    vocab_size=13,
    d_model=8,
    d_ff=16,
    num_heads=2,
    num_layers=3,
    norm_position="pre",
    positions="learned",
    biases=True,
    embeddings="separate",
    max_length=6,
)
MATRICES = {"query", "key", "value", "output", "inner", "outer"}
TABLES = {"src_embedding", "tgt_embedding", "output_embedding"}


def by_name(tree, leaf_type):
    """Returns the leaves by path, a tuple of names."""
    found = {}

    def is_leaf(node):
        return isinstance(node, leaf_type)

    for path, leaf in jax.tree.leaves_with_path(tree, is_leaf=is_leaf):
        names = tuple(key.key for key in path)
        found[names] = leaf
    return found


TOKENS = np.ones((1, 1), np.int32)
PARAMS = random_params(Transformer(CONFIG), TOKENS, TOKENS)


def test_every_parameter_of_the_transformer_is_described():
    """Parameters are plain arrays: a box would add a key to a path."""
    info = by_name(describe_model(CONFIG), ParameterInfo)
    params = by_name(PARAMS, np.ndarray)

    described = {path: len(fact.axes) for path, fact in info.items()}
    assert described == {path: leaf.ndim for path, leaf in params.items()}

    def names_of(role):
        return {path[-1] for path, fact in info.items() if fact.role == role}

    assert names_of("matrix") == MATRICES
    assert names_of("table") == TABLES


def test_axes_have_the_sizes_of_their_names():
    sizes = {"d_model": 8, "d_ff": 16, "heads": 2, "vocab": 13}
    info = by_name(describe_model(CONFIG), ParameterInfo)
    params = by_name(PARAMS, np.ndarray)

    for path, fact in info.items():
        for name, size in zip(fact.axes, params[path].shape, strict=True):
            # The first axis of W^O combines heads and the size of a head.
            if path[-1] == "output" and name == "heads":
                assert size == 8, path
            else:
                assert size == sizes.get(name, size), path


def test_matrices_are_cast_and_vectors_stay():
    info = describe_model(CONFIG)
    params = by_name(PARAMS, np.ndarray)

    @jax.jit
    def cast(params):
        dtypes = ("float32", "bfloat16", "int8")
        return {dtype: cast_params(params, info, dtype) for dtype in dtypes}

    def check_quantized(found, leaf):
        # Matmuls sum over axis 1 of stacked matrices, and over d_model of tables.
        largest = np.abs(leaf).max(axis=1, keepdims=True)
        np.testing.assert_allclose(found.scale, largest / 127, rtol=1e-6)
        error = np.abs(found.values * found.scale - leaf)
        assert (error <= 0.5001 * largest / 127).all()

    def check_cast(found, leaf, dtype):
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, leaf.astype(dtype))

    for dtype, tree in jax.device_get(cast(PARAMS)).items():
        found = by_name(tree, Int8Matrix)
        for path, leaf in params.items():
            name = path[-1]
            if dtype == "int8" and name in MATRICES | TABLES:
                check_quantized(found[path], leaf)
            elif dtype == "bfloat16" and name in MATRICES:
                check_cast(found[path], leaf, dtype="bfloat16")
            else:
                check_cast(found[path], leaf, dtype="float32")


def test_parameters_of_wrong_width_are_refused():
    layer = FeedForward(16)
    x = jnp.asarray(np.ones((1, 3, 8), np.float32))
    params = random_params(layer, x)

    narrower = x[:, :, :6]
    with pytest.raises(UserError, match=r"'inner' of shape \(6, 16\).*one of shape \(8, 16\)"):
        layer.apply({"params": params}, narrower)
