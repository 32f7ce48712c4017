"""Our encoder and decoder against ``torch.nn.Transformer``.

The fixture is made by ``tests/fixtures/make_torch.py``.
"""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.config import ModelConfig
from jaxformer.errors import UserError
from jaxformer.interop.torch import from_torch_transformer
from jaxformer.models.assembly import make_stack
from jaxformer.nn import LayerNorm, causal_mask, segment_mask

FIXTURE = pathlib.Path(__file__).parents[2] / "fixtures" / "torch_transformer.npz"
ACTIVATIONS = {"post": "relu", "pre": "swish"}


def _state(norm_position):
    arrays = np.load(FIXTURE)
    prefix = f"{norm_position}/state/"
    return {name.removeprefix(prefix): arrays[name] for name in arrays if name.startswith(prefix)}


@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_outputs_equal_pytorch(norm_position):
    config = ModelConfig(
        d_model=24,
        d_ff=40,
        num_heads=4,
        num_layers=2,
        biases=True,
        activation=ACTIVATIONS[norm_position],
        norm_position=norm_position,
        norm_epsilon=1e-5,
    )
    arrays = np.load(FIXTURE)
    src, tgt, padding, expected_encoded, expected_decoded = (
        jnp.asarray(arrays[f"{norm_position}/{name}"])
        for name in ("src", "tgt", "src_padding", "encoded", "decoded")
    )
    params = from_torch_transformer(_state(norm_position), num_heads=4)

    encoded, decoded = _run(config, params, src, tgt, padding)
    real = ~np.asarray(padding)
    np.testing.assert_allclose(encoded[real], expected_encoded[real], atol=1e-5, rtol=0)
    np.testing.assert_allclose(decoded, expected_decoded, atol=1e-5, rtol=0)


@functools.partial(jax.jit, static_argnums=0)
def _run(config, params, src, tgt, padding):
    def apply(stack, *arguments):
        variables = {"params": params[stack]}
        module = make_stack(config, cross_attention=stack == "decoder")
        x = module.apply(variables, *arguments)
        if config.norm_position == "pre":  # Pre-norm stacks end with a layer norm.
            return x
        return LayerNorm(1e-5).apply({"params": params[stack]["norm"]}, x)

    src_segments = jnp.where(padding, 0, 1)
    tgt_segments = jnp.ones(tgt.shape[:2], jnp.int32)
    encoded = apply("encoder", src, None, segment_mask(src_segments, src_segments))
    self_mask = segment_mask(tgt_segments, tgt_segments) & causal_mask(tgt.shape[1])
    cross_mask = segment_mask(tgt_segments, src_segments)
    return encoded, apply("decoder", tgt, encoded, self_mask, cross_mask)


def test_invalid_state_dictionaries_are_refused():
    with pytest.raises(UserError, match=r"a matrix encoder.layers.0.linear1.weight: got weight"):
        from_torch_transformer({"weight": np.zeros((2, 2))}, num_heads=1)
    state = _state("post")
    with pytest.raises(UserError, match=r"num_heads must divide the width of the model, 24: got 5"):
        from_torch_transformer(state, num_heads=5)
    with pytest.raises(UserError, match=r"no place for decoder.layers.1.extra"):
        from_torch_transformer({**state, "decoder.layers.1.extra": np.zeros(1)}, num_heads=4)
    del state["decoder.layers.1.norm3.bias"]
    with pytest.raises(UserError, match=r"expected an array decoder.layers.1.norm3.bias of shape"):
        from_torch_transformer(state, num_heads=4)
