"""Metadata of parameters: axes for sharding, and roles for quantization."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jaxformer.config import ModelConfig
from jaxformer.errors import UserError
from jaxformer.models.selection import describe_model
from jaxformer.models.transformer import Transformer
from jaxformer.nn import Block, FeedForward, MultiHeadAttention, ParameterInfo, describe, parameter
from jaxformer.nn.precision import Int8Matrix, cast_params, quantize_matrix

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


def by_name(tree, leaf_type):
    leaves = jax.tree.leaves_with_path(tree, is_leaf=lambda leaf: isinstance(leaf, leaf_type))
    return {tuple(key.key for key in path): leaf for path, leaf in leaves}


def params_of(config):
    tokens = jnp.ones((1, 1), jnp.int32)
    return Transformer(config).init(jax.random.key(0), tokens, tokens)["params"]


def test_every_parameter_of_the_transformer_is_described():
    info, params = by_name(describe_model(CONFIG), ParameterInfo), params_of(CONFIG)
    shapes = {path: leaf.shape for path, leaf in by_name(params, jax.Array).items()}
    assert info.keys() == shapes.keys()
    assert {path: len(fact.axes) for path, fact in info.items()} == {
        path: len(shape) for path, shape in shapes.items()
    }
    roles = {path: fact.role for path, fact in info.items()}
    assert {path[-1] for path, role in roles.items() if role == "matrix"} == MATRICES
    assert {path[-1] for path, role in roles.items() if role == "table"} == {
        "src_embedding",
        "tgt_embedding",
        "output_embedding",
    }


def test_axes_have_the_sizes_of_their_names():
    sizes = {"d_model": 8, "d_ff": 16, "heads": 2, "vocab": 13}
    params = by_name(params_of(CONFIG), jax.Array)
    for path, fact in by_name(describe_model(CONFIG), ParameterInfo).items():
        for name, size in zip(fact.axes, params[path].shape, strict=True):
            # The first axis of W^O combines heads and the size of a head.
            expected = 8 if path[-1] == "output" and name == "heads" else sizes.get(name, size)
            assert size == expected, path


def test_custom_modules_are_described():
    block = Block(MultiHeadAttention(2), FeedForward(16))
    info = describe(block.init, jax.random.key(0), jnp.ones((1, 3, 8)))
    assert info["feed_forward"]["inner"] == ParameterInfo(("d_model", "d_ff"), "matrix")
    assert info["self_attention"]["query"] == ParameterInfo(("d_model", "heads", None), "matrix")
    assert info["feed_forward_residual"]["norm"]["scale"] == ParameterInfo((None,), "vector")


def test_init_returns_plain_arrays():
    assert {type(leaf) for leaf in jax.tree.leaves(params_of(CONFIG))} == {type(jnp.ones(1))}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_matrices_are_cast_and_vectors_stay(dtype):
    params = params_of(CONFIG)
    cast = by_name(cast_params(params, describe_model(CONFIG), dtype), Int8Matrix)
    for path, leaf in by_name(params, jax.Array).items():
        found, is_table = cast[path], path[-1].endswith("embedding")
        if dtype == "int8" and (path[-1] in MATRICES or is_table):
            # Matmuls sum over axis 1 of stacked matrices, and over d_model of tables.
            expected = quantize_matrix(leaf, 1)
            np.testing.assert_array_equal(found.values, expected.values)
            np.testing.assert_array_equal(found.scale, expected.scale)
        else:
            kept = "float32" if dtype == "int8" or path[-1] not in MATRICES else dtype
            assert found.dtype == kept
            np.testing.assert_array_equal(found, leaf.astype(kept))


class Matrix(nn.Module):
    axes: tuple = ()
    role: Any = "matrix"

    @nn.compact
    def __call__(self, x):
        zeros = nn.initializers.zeros
        return x @ parameter(self, "kernel", zeros, (x.shape[-1],) * 2, self.axes, self.role)


@pytest.mark.parametrize(
    ("module", "place"),
    [
        (Matrix(), "first"),
        (Matrix((None, "d_ff")), "first"),
        (Matrix(("vocab", None), "table"), "last"),
    ],
)
def test_the_axis_that_is_summed_over_needs_a_name(module, place):
    with pytest.raises(UserError, match=f"Matrix: expected a name for the {place} axis of the"):
        module.init(jax.random.key(0), jnp.ones((2, 3)))


def test_parameters_of_wrong_width_are_refused():
    layer = FeedForward(16)
    params = layer.init(jax.random.key(0), jnp.ones((1, 3, 8)))
    with pytest.raises(UserError, match=r"'inner' of shape \(6, 16\).*one of shape \(8, 16\)"):
        layer.apply(params, jnp.ones((1, 3, 6)))
