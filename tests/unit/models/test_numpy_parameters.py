"""Parameters may be arrays of NumPy, as files have them, outside of ``jax.jit``."""

import dataclasses
import functools
from typing import Any

import flax.serialization
import jax
import numpy as np
import pytest

from jaxformer.kinds.model_parameters import describe_model, make_init
from jaxformer.kinds.selection import known_kinds
from jaxformer.models.cnn import CNN
from jaxformer.models.convit import ConViT
from jaxformer.models.flamingo import Flamingo
from jaxformer.models.stepwise import StepwiseModel, step_fn
from jaxformer.models.swin import Swin
from jaxformer.nn import cast_params

TOKENS = np.array([[5, 6, 7], [5, 6, 0]], np.int32)
SIZES = {
    "vocab_size": 12,
    "d_model": 8,
    "d_ff": 16,
    "num_heads": 2,
    "num_layers": 1,
    "d_k": 4,
    "num_kv_heads": 2,
    "num_decoder_layers": 1,
    "max_length": 32,
    "num_classes": 3,
    "height": 8,
    "width": 8,
    "patch_size": 4,
    "vision_d_model": 8,
    "vision_d_ff": 16,
    "vision_num_heads": 2,
    "vision_num_layers": 1,
    "gated_every": 1,
    "position_groups": 2,
    "window_size": 2,
    "depths": "2",
}
# Sizes of one model.
OWN_SIZES = {
    Swin: {"patch_size": 2},
    ConViT: {"num_heads": 4, "num_layers": 2, "num_local_layers": 1},
}
# Parsers and masked language models are models of other kinds, too.
NETWORKS = {network: kind for kind in reversed(known_kinds()) for network in kind.networks}


def config_of(network):
    """Returns a config with the sizes that it has."""
    fields = {field.name for field in dataclasses.fields(network.section)}
    sizes = {name: size for name, size in SIZES.items() if name in fields}
    return network.section(**{**sizes, **OWN_SIZES.get(network, {})})


def random_params_of(config, kind):
    shapes = jax.eval_shape(make_init(config, kind), jax.random.key(0))
    random = np.random.default_rng(0)

    def draw(leaf):
        values = random.normal(0, 0.3, leaf.shape)
        return values.astype(leaf.dtype)

    return jax.tree.map(draw, shapes)


def model_of(network, dtype):
    """Returns a small model, its random parameters in NumPy, and its inputs."""
    kind = NETWORKS[network]
    config = config_of(network)

    params = random_params_of(config, kind)
    if dtype == "float32":
        in_file = flax.serialization.to_bytes(params)
        params = flax.serialization.from_bytes(params, in_file)
    else:
        info = describe_model(config, kind)
        cast = jax.jit(lambda params: cast_params(params, info, dtype))
        params = jax.device_get(cast(params))

    inputs: list[Any] = []
    for each in kind.inputs(config):
        if each.dtype != np.int32:
            inputs.append(np.ones((2, *each.shape[1:]), np.float32))
        elif len(each.shape) == 1:  # lengths of the rows
            inputs.append(np.full(2, inputs[0].shape[1]))
        else:
            inputs.append(TOKENS)

    model = kind.build(dataclasses.replace(config, compute_dtype=dtype))
    return model, params, inputs


def decode(params, model, inputs):
    """Returns what each method of a model that decodes returns."""
    apply = functools.partial(model.apply, {"params": params})
    # A language model has only the tokens of its texts; others read sources before them.
    sources = inputs[:-1] or inputs
    empty = apply(*sources, num_beams=2, capacity=8, method="start")
    _, cache = apply(TOKENS, empty, 2, method="prefill")
    output = apply(np.arange(6), method="candidate_output")

    step = step_fn(model, params)
    return output, step(np.full((2, 2), 5), cache)


def cases():
    for network in NETWORKS:
        for dtype in ("float32", "int8"):
            if (network, dtype) != (CNN, "int8"):  # It has no int8.
                yield pytest.param(network, dtype, id=f"{network.__name__}-{dtype}")


@pytest.mark.parametrize(("network", "dtype"), list(cases()))
def test_arrays_of_numpy_are_parameters(network, dtype):
    model, params, inputs = model_of(network, dtype)

    # As constants of a program, they are arrays of NumPy while it is traced.

    @jax.jit
    def run():
        return model.apply({"params": params}, *inputs)

    found = run()

    expected = jax.jit(model.apply)({"params": params}, *inputs)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    # Flamingo begins with pictures and tokens.
    begins_with_one = isinstance(model, StepwiseModel) and not isinstance(model, Flamingo)
    if begins_with_one and dtype == "float32":
        jax.eval_shape(lambda: decode(params, model, inputs))
