"""The formula against a count of the matmuls that JAX traces."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.config import ModelConfig
from jaxformer.models.flops import forward_flops, language_model_flops, training_flops
from jaxformer.models.language_model import LanguageModel
from jaxformer.models.transformer import Transformer


def traced_flops(jaxpr, times=1) -> int:
    """Counts twice the multiplications of every matmul of a jaxpr, including loops and calls."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            inner = math.prod(shape[axis] for axis in contracted)
            total += 2 * times * inner * math.prod(equation.outvars[0].aval.shape)
        repeats = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        for value in equation.params.values():
            inner_jaxpr = getattr(value, "jaxpr", value)
            if hasattr(inner_jaxpr, "eqns"):
                total += traced_flops(inner_jaxpr, times * repeats)
    return total


CASES = [
    {},
    {"d_k": 3, "d_v": 5},
    {"num_heads": 1, "num_layers": 1},
    {"embeddings": "separate", "target_vocab_size": 11},
]


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [(Transformer, sizes) for sizes in CASES] + [(LanguageModel, sizes) for sizes in CASES[:3]],
)
def test_the_formula_counts_what_is_traced(kind, sizes):
    config = ModelConfig(
        **{"vocab_size": 29, "d_model": 12, "d_ff": 20, "num_heads": 4, "num_layers": 3} | sizes
    )
    model, inputs = kind(config), [jnp.asarray(np.ones((2, n), np.int32)) for n in (7, 5)]
    inputs = inputs[: 2 if kind is Transformer else 1]
    variables = jax.eval_shape(lambda: model.init(jax.random.key(0), *inputs))
    traced = traced_flops(jax.make_jaxpr(lambda v: model.apply(v, *inputs))(variables).jaxpr)
    if kind is Transformer:
        assert forward_flops(config, 2, 7, 5) == traced
        assert training_flops(config, 2, 7, 5) == 3 * traced
    else:
        assert language_model_flops(config, 2, 7) == 3 * traced
