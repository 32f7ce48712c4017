"""Backend settings change how a program is compiled, but not its results."""

import dataclasses
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.config import ModelConfig
from jaxformer.models.transformer import Transformer
from jaxformer.nn import backend, backend_for, use_backend
from jaxformer.nn.backend import cpu_features, emulates

from ...profiles import by_profile
from .weights import random_params

CONFIG = ModelConfig(
    vocab_size=13,
    d_model=8,
    d_ff=16,
    num_heads=2,
    num_layers=2,
    max_length=8,
)
TOKENS = jnp.asarray(np.int32([[3, 4, 5, 1]]))


@pytest.mark.parametrize(
    ("flags", "emulated", "unsigned"),
    [
        ("fpu avx2 fma", True, False),
        ("fpu avx512_vnni", True, True),
        ("fpu avx512_bf16 avx512_vnni", False, True),
        ("fpu amx_bf16 amx_int8 avx512_vnni", False, False),
        ("", False, False),
    ],
)
def test_cpu_settings_depend_on_its_instructions(flags, emulated, unsigned, tmp_path, monkeypatch):
    path = tmp_path / "cpuinfo"
    if flags:
        path.write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
    features = cpu_features(path)
    module = importlib.import_module(backend.__module__)
    monkeypatch.setattr(module, "cpu_features", lambda: features)

    assert emulates("bfloat16") == emulated
    assert emulates("float16") == bool(flags)
    assert not emulates("float32")
    assert backend_for("cpu").unsigned_int8 == unsigned


CHANGES = [
    {"unroll_layers": False, "float32_activations": False},
    {"unroll_layers": False},
    {"float32_activations": False},
]


@pytest.mark.parametrize("change", by_profile(CHANGES[:1], nightly=CHANGES))
def test_settings_do_not_change_results(change):
    model = Transformer(CONFIG)
    params = random_params(model, TOKENS, TOKENS)

    def loss(params):
        logits = model.apply({"params": params}, TOKENS, TOKENS)
        return jnp.sin(logits).sum()

    expected = jax.device_get(jax.jit(jax.value_and_grad(loss))(params))

    with use_backend(dataclasses.replace(backend(), **change)):
        found = jax.device_get(jax.jit(jax.value_and_grad(loss))(params))
        program = str(jax.make_jaxpr(loss)(params))
        assert program.count("scan[") >= 2

    leaves = jax.tree.leaves(found)
    for a, b in zip(leaves, jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_bfloat16_activations_on_accelerators():
    model = Transformer(dataclasses.replace(CONFIG, compute_dtype="bfloat16"))
    params = random_params(model, TOKENS, TOKENS)

    def encoded_dtype():
        # A function of each call, which JAX has not traced for another backend.
        def encode(params):
            return model.apply({"params": params}, TOKENS, method="encode")

        return jax.eval_shape(encode, params).dtype

    assert encoded_dtype() == np.float32
    with use_backend(backend_for("tpu")):
        assert encoded_dtype() == "bfloat16"
