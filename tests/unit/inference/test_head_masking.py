"""Masked heads against another way to silence a head: zeros in the matrix of its values."""

import functools
from typing import Any

import flax.traverse_util
import jax
import numpy as np

from jaxformer.config import ModelConfig
from jaxformer.inference.head_masking import find_heads, without_head
from jaxformer.inference.parameter_arrays import abstract_params
from jaxformer.models.transformer import Transformer

CONFIG = ModelConfig(
    vocab_size=11,
    d_model=8,
    d_ff=8,
    num_heads=2,
    num_layers=2,
    max_length=8,
)


@functools.cache
def parameters():
    random = np.random.default_rng(0)

    def draw(leaf):
        return random.normal(size=leaf.shape).astype(np.float32)

    return jax.tree.map(draw, abstract_params(CONFIG))


def without_values(params, head):
    matrices: Any = flax.traverse_util.flatten_dict(params)
    values = matrices[*head.path, "value"].copy()  # [L, D, H, V]
    values[head.layer - 1, :, head.number - 1] = 0
    matrices[*head.path, "value"] = values
    return flax.traverse_util.unflatten_dict(matrices)


def test_each_head_is_found_once_encoder_first():
    expected = []
    for kind in ("encoder", "decoder", "cross"):
        expected += [(kind, layer, number) for layer in (1, 2) for number in (1, 2)]
    assert [head[:3] for head in find_heads(parameters())] == expected


def test_a_masked_head_is_a_head_without_values():
    model = jax.jit(Transformer(CONFIG).apply)
    source = np.array([[4, 5, 6, 1]])
    target = np.array([[2, 7, 8]])

    whole = np.asarray(model({"params": parameters()}, source, target))
    for head in find_heads(parameters()):
        masked, silent = (
            np.asarray(model({"params": change(parameters(), head)}, source, target))
            for change in (without_head, without_values)
        )
        np.testing.assert_allclose(masked, silent, rtol=1e-5, atol=1e-5)
        assert np.abs(masked - whole).max() > 1e-3
