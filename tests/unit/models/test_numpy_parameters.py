"""Parameters may be arrays of NumPy, as files have them, outside of ``jax.jit``."""

import dataclasses

import flax.serialization
import jax
import numpy as np
import pytest

from jaxformer.kinds.model_parameters import describe_model, make_init
from jaxformer.kinds.selection import known_kinds
from jaxformer.models.stepwise import StepwiseModel, step_fn
from jaxformer.nn import cast_params

TOKENS = np.array([[5, 6, 7], [5, 6, 0]], np.int32)
SIZES = {
    **{"vocab_size": 12, "d_model": 8, "d_ff": 16, "num_heads": 2, "num_layers": 1, "d_k": 4},
    **{"num_kv_heads": 2, "num_decoder_layers": 1, "max_length": 32, "num_classes": 3},
    **{"image_size": 8, "patch_size": 4},
}
# Parsers and masked language models are models of other kinds, too.
NETWORKS = {network: kind for kind in reversed(known_kinds()) for network in kind.networks}


def model_of(network, dtype):
    """Returns a small model, its random parameters in NumPy, and its inputs."""
    kind, section = NETWORKS[network], network.section
    names = {field.name for field in dataclasses.fields(section)}
    config = section(**{name: size for name, size in SIZES.items() if name in names})
    shapes = jax.eval_shape(make_init(config, kind), jax.random.key(0))
    random = np.random.default_rng(0)
    params = jax.tree.map(lambda a: random.normal(0, 0.3, a.shape).astype(a.dtype), shapes)
    if dtype == "float32":
        params = flax.serialization.from_bytes(params, flax.serialization.to_bytes(params))
    else:
        info = describe_model(config, kind)
        params = jax.device_get(jax.jit(lambda p: cast_params(p, info, dtype))(params))
    inputs = [np.ones((2, *each.shape[1:]), np.float32) for each in kind.inputs(config)]
    if kind.load_tokenizer is not None:
        inputs = [TOKENS] * len(inputs)
    return kind.build(dataclasses.replace(config, compute_dtype=dtype)), params, inputs


def decode(params, model, inputs):
    variables, sizes = {"params": params}, {"num_beams": 2, "capacity": 8}
    empty = model.apply(variables, inputs[0], **sizes, method="start")
    _, cache = model.apply(variables, TOKENS, empty, 2, method="prefill")
    output = model.apply(variables, np.arange(6), method="candidate_output")
    return output, step_fn(model, params)(np.full((2, 2), 5), cache)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.__name__)
def test_arrays_of_numpy_are_parameters(network, dtype):
    model, params, inputs = model_of(network, dtype)
    # As constants of a program, they are arrays of NumPy while it is traced.
    found = jax.jit(lambda: model.apply({"params": params}, *inputs))()
    expected = jax.jit(model.apply)({"params": params}, *inputs)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    if isinstance(model, StepwiseModel) and dtype == "float32":
        jax.eval_shape(lambda: decode(params, model, inputs))
