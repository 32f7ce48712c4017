"""Sizes of Swin; tests/integration/test_pictures.py compares it with transformers."""

import dataclasses
import math

import jax
import pytest

from jaxformer import SwinConfig, ViTConfig
from jaxformer.errors import UserError
from jaxformer.inference.parameter_arrays import abstract_params
from jaxformer.kinds.image_classification import IMAGE_CLASSIFICATION
from jaxformer.training.flops import layers_flops

BASE = {"d_model": 128, "d_ff": 512, "num_heads": 4, "depths": "2 2 18 2"}


@pytest.mark.parametrize(
    ("config", "size"),
    [
        (SwinConfig(), 28_288_354),  # Swin-T
        (SwinConfig(depths="2 2 18 2"), 49_606_258),
        (SwinConfig(**BASE), 87_768_224),
    ],
)
def test_parameters_are_as_many_as_published(config, size):
    leaves = jax.tree.leaves(abstract_params(config, IMAGE_CLASSIFICATION))
    assert sum(math.prod(leaf.shape) for leaf in leaves) == size


def forward_flops(config):
    """Returns the operations of the layers for one picture; a training step has three passes."""
    stacks = config.stacks
    return sum(layers_flops(each.sizes, each.sequences, each.length) for each in stacks) / 3


def test_operations_grow_with_the_number_of_pixels():
    """Swin-T has 4.5 GFLOPs by the paper, which counts a multiplication and an addition as one."""
    assert forward_flops(SwinConfig()) / 2 == pytest.approx(4.5e9, rel=0.05)

    sizes = {"height": 448, "width": 448}
    large = SwinConfig(**sizes)
    assert forward_flops(large) == 4 * forward_flops(SwinConfig())

    growth = forward_flops(ViTConfig(**sizes)) / forward_flops(ViTConfig())
    assert growth > 4.4


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"depths": ""}, "model.depths must be even numbers of blocks, .*: got ''"),
        ({"depths": "2 0"}, "model.depths must be even numbers of blocks, .*: got '2 0'"),
        ({"depths": "2,2"}, "separated by spaces: got '2,2'"),
        ({"height": 226}, "model.patch_size must divide model.height=226: got 4; use 2"),
        ({"height": 112}, "window_size=7 must divide .*: got 3.5 x 7 in stage 4"),
        (
            {"window_size": 8},
            "window_size=8 must divide .* halves after each: got 28 x 28 in stage",
        ),
        ({"num_heads": 5}, "model.num_heads must divide model.d_model=96: got 5"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(fields, message):
    with pytest.raises(UserError, match=message):
        dataclasses.replace(SwinConfig(), **fields)
