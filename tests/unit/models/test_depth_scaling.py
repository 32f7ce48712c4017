"""Factors for deep stacks: the constants of the papers, initial values, and the layer's formula."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from jaxformer import ModelConfig, UserError
from jaxformer.kinds.language_modeling import LANGUAGE_MODELING
from jaxformer.kinds.model_parameters import make_init
from jaxformer.models.student import StudentConfig
from jaxformer.nn.block import Residual
from jaxformer.nn.depth_scaling import (
    scaling_of_decoder,
    scaling_of_encoder,
    scaling_of_stack,
)

SMALL = ModelConfig(
    vocab_size=11,
    d_model=8,
    d_ff=12,
    num_heads=2,
    num_layers=3,
    dropout_rate=0.0,
)


def test_constants_are_those_of_the_papers():
    """Table 2 of Wang et al. 2022 at 100 layers, and section 2.3 of Radford et al. 2019."""
    encoder = scaling_of_encoder("deepnorm", 100, 100)
    np.testing.assert_allclose(encoder, [3.41574, 0.20631, 0.20631], rtol=1e-4)
    decoder = scaling_of_decoder("deepnorm", 100)
    np.testing.assert_allclose(decoder, [4.16179, 0.16990, 0.16990], rtol=1e-4)
    alone = scaling_of_stack("deepnorm", 100)
    np.testing.assert_allclose(alone, [3.76060, 0.18803, 0.18803], rtol=1e-4)

    assert scaling_of_stack("gpt2", 8) == (1, 1, 1 / 4)
    assert scaling_of_encoder("gpt2", 8, 3) == (1, 1, 1 / 4)
    assert scaling_of_decoder("gpt2", 3) == (1, 1, 1 / 3)
    assert scaling_of_stack("none", 100) == (1, 1, 1)


def ratios(scaling, **kind):
    """Returns the factor on each initial matrix, by its path."""

    @functools.partial(jax.jit, static_argnums=0)
    def init(config):
        return make_init(config, **kind)(jax.random.key(0))

    plain, scaled = jax.device_get(
        [init(dataclasses.replace(SMALL, depth_scaling=name)) for name in ("none", scaling)]
    )
    found = {}
    leaves = zip(jax.tree.leaves_with_path(plain), jax.tree.leaves(scaled), strict=True)
    for (path, before), after in leaves:
        if before.any():
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            factors = after[before != 0] / before[before != 0]
            np.testing.assert_allclose(factors, factors[0], rtol=1e-5)
            found[name.replace("layers/", "")] = float(factors[0])
    return found


def test_gains_of_deepnorm_are_those_of_values_outputs_and_feed_forward_networks():
    found = ratios("deepnorm")
    beta = {"encoder": 0.87 * 3 ** (-5 / 16), "decoder": 36**-0.25}
    for name, ratio in found.items():
        is_scaled = name.endswith(("value", "output", "inner", "outer"))
        expected = beta[name.split("/")[0]] if is_scaled else 1.0
        assert ratio == pytest.approx(expected, rel=1e-5), name
    assert len(found) == 22  # 6 and 10 matrices of a layer, 2 and 3 norms, and the embedding


def test_gains_of_gpt2_are_those_of_matrices_before_additions():
    found = ratios("gpt2", kind=LANGUAGE_MODELING)
    for name, ratio in found.items():
        expected = 6**-0.5 if name.endswith(("output", "outer")) else 1.0
        assert ratio == pytest.approx(expected, rel=1e-5), name


def test_deepnorm_multiplies_the_input_of_the_residual_connection():
    x = np.random.default_rng(0).normal(size=(1, 2, 4)).astype(np.float32)
    layer = Residual(input_scale=3.0)
    found, _ = layer.init_with_output(jax.random.key(0), x, lambda x: x**2)

    added = 3 * x + x**2
    centered = added - added.mean(-1, keepdims=True)
    expected = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_what_cannot_be_scaled_is_refused():
    with pytest.raises(UserError, match=r"^model.depth_scaling=deepnorm needs .*got pre; gpt2 is"):
        ModelConfig(depth_scaling="deepnorm", norm_position="pre")
    with pytest.raises(UserError, match=r"^Residual: input_scale=2.0 needs norm_position=post"):
        Residual("pre", input_scale=2.0).init(jax.random.key(0), np.ones((1, 1, 2)), lambda x: x)
    with pytest.raises(UserError, match=r"^a student's recurrence .*depth_scaling=none, got gpt2"):
        StudentConfig(depth_scaling="gpt2")
