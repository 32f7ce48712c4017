"""Our encoder and decoder against ``torch.nn.Transformer``.

The fixture is made by ``tests/fixtures/make_torch.py``.
"""

import functools
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.config import ModelConfig
from jaxformer.errors import UserError
from jaxformer.interop.torch import from_torch_transformer
from jaxformer.interop.weight_files import read_torch
from jaxformer.models.assembly import make_stack
from jaxformer.nn import Keys, LayerNorm, Memory

FIXTURE = pathlib.Path(__file__).parents[2] / "fixtures" / "torch_transformer.npz"
STATE = FIXTURE.with_name("torch_tensors.bin")
ACTIVATIONS = {"post": "relu", "pre": "swish"}


def _state(norm_position):
    arrays = np.load(FIXTURE)
    prefix = f"{norm_position}/state/"
    names = [name for name in arrays if name.startswith(prefix)]
    return {name.removeprefix(prefix): arrays[name] for name in names}


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
    src = arrays[f"{norm_position}/src"]
    tgt = arrays[f"{norm_position}/tgt"]
    padding = arrays[f"{norm_position}/src_padding"]
    expected_encoded = arrays[f"{norm_position}/encoded"]
    expected_decoded = arrays[f"{norm_position}/decoded"]

    params = from_torch_transformer(_state(norm_position), num_heads=4)
    encoded, decoded = jax.device_get(_run(config, params, src, tgt, padding=padding))
    real = ~padding
    np.testing.assert_allclose(encoded[real], expected_encoded[real], atol=1e-5, rtol=0)
    np.testing.assert_allclose(decoded, expected_decoded, atol=1e-5, rtol=0)


@functools.partial(jax.jit, static_argnums=0)
def _run(config, params, src, tgt, padding):
    def apply(stack, *arguments):
        variables = {"params": params[stack]}
        is_decoder = stack == "decoder"
        module = make_stack(config.stack_settings(), causal=is_decoder, cross_attention=is_decoder)

        x = module.apply(variables, *arguments)
        if config.norm_position == "pre":  # Pre-norm stacks end with a layer norm.
            return x
        return LayerNorm(1e-5).apply({"params": params[stack]["norm"]}, x)

    src_segments = (~padding).astype(np.int32)
    tgt_segments = jnp.ones(tgt.shape[:2], jnp.int32)

    src_keys = Keys.of_sequence(src.shape[1], src_segments)
    encoded = apply("encoder", src, src_keys)

    tgt_keys = Keys.of_sequence(tgt.shape[1], tgt_segments, causal=True)
    memory = Memory(encoded, Keys.of_memory(tgt_segments, src_segments))
    decoded = apply("decoder", tgt, tgt_keys, memory)
    return encoded, decoded


def test_invalid_state_dictionaries_are_refused():
    state = _state("post")
    extra = {**state, "decoder.layers.1.extra": np.zeros(1)}
    missing = {name: array for name, array in state.items() if name != "decoder.norm.bias"}

    for given, num_heads, message in (
        ({"weight": np.zeros((2, 2))}, 1, "a matrix encoder.layers.0.linear1.weight: got weight"),
        (state, 5, "num_heads must divide the width of the model, 24: got 5"),
        (extra, 4, "no place for decoder.layers.1.extra"),
        (missing, 4, "expected an array decoder.norm.bias of shape"),
    ):
        with pytest.raises(UserError, match=message):
            from_torch_transformer(given, num_heads=num_heads)


def test_state_dictionaries_need_pytorch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UserError, match="pip install torch"):
        read_torch(STATE)


def test_state_dictionaries_are_read_as_float32(tmp_path):
    pytest.importorskip("torch")
    numbers = np.arange(12.0, dtype=np.float32)
    rows = numbers.reshape(3, 4)
    expected = {
        "whole": numbers,
        "rows": rows,
        "transposed": rows.T,
        "last": numbers[7:],
        "half": numbers,
        "bfloat16": numbers,
        "double": numbers,
        "scalar": numbers[5],
        "none": numbers[:0],
    }

    found = read_torch(STATE)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, strict=True)


def test_damaged_state_dictionaries_are_refused(tmp_path):
    pytest.importorskip("torch")
    damaged = tmp_path / "pytorch_model.bin"
    for content in (STATE.read_bytes()[:-30], b"\x80\x02cposix\nsystem\n(X\x04\x00\x00\x00truetR."):
        damaged.write_bytes(content)
        with pytest.raises(UserError, match="expected a dictionary of tensors"):
            read_torch(damaged)
