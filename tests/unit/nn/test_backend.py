"""Backend settings change how a program is compiled, but not its results."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.config import ModelConfig
from jaxformer.models.transformer import Transformer
from jaxformer.nn import backend, backend_for, use_backend
from jaxformer.nn.backend import emulates_bfloat16

from ...profiles import by_profile
from .weights import random_params

CONFIG = ModelConfig(vocab_size=13, d_model=8, d_ff=16, num_heads=2, num_layers=2, max_length=8)
TOKENS = jnp.asarray(np.int32([[3, 4, 5, 1]]))


def test_bfloat16_is_emulated_on_cpus_without_instructions_for_it(tmp_path):
    path = tmp_path / "cpuinfo"
    for flags, emulated in (("fpu avx2 fma", True), ("fpu avx512_bf16 amx_bf16", False)):
        path.write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
        assert emulates_bfloat16(path) == emulated


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
        return jnp.sin(model.apply({"params": params}, TOKENS, TOKENS)).sum()

    expected = jax.device_get(jax.jit(jax.value_and_grad(loss))(params))
    with use_backend(dataclasses.replace(backend(), **change)):
        found = jax.device_get(jax.jit(jax.value_and_grad(loss))(params))
        assert str(jax.make_jaxpr(loss)(params)).count("scan[") >= 2
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_bfloat16_activations_on_accelerators():
    model = Transformer(dataclasses.replace(CONFIG, compute_dtype="bfloat16"))
    params = random_params(model, TOKENS, TOKENS)

    def encoded_dtype():
        return jax.eval_shape(
            lambda params: model.apply({"params": params}, TOKENS, method="encode"), params
        ).dtype

    assert encoded_dtype() == np.float32
    with use_backend(backend_for("tpu")):
        assert encoded_dtype() == "bfloat16"
