"""The formula against a count of the matmuls that JAX traces."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.models.flops import language_model_flops, training_flops
from jaxformer.models.gpt2 import GPT2
from jaxformer.models.language_model import LanguageModel
from jaxformer.models.llama import Llama
from jaxformer.models.transformer import Transformer

from ...multiplications import multiplications

CASES = [
    {},
    {"d_k": 3, "d_v": 5},
    {"num_heads": 1, "num_layers": 1},
    {"embeddings": "separate", "target_vocab_size": 11},
]


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [(Transformer, sizes) for sizes in CASES]
    + [(LanguageModel, sizes) for sizes in CASES[:3]]
    + [(GPT2, {}), (Llama, {"d_k": 2}), (Llama, {"d_k": 4, "num_kv_heads": 2})],
)
def test_the_formula_counts_what_is_traced(kind, sizes):
    config = kind.section(
        **{"vocab_size": 29, "d_model": 12, "d_ff": 20, "num_heads": 4, "num_layers": 3} | sizes
    )
    model, inputs = kind(config), [jnp.asarray(np.ones((2, n), np.int32)) for n in (7, 5)]
    inputs = inputs[: 2 if kind is Transformer else 1]
    variables = jax.eval_shape(lambda: model.init(jax.random.key(0), *inputs))
    traced = 2 * multiplications(jax.make_jaxpr(lambda v: model.apply(v, *inputs))(variables).jaxpr)
    if kind is Transformer:
        assert training_flops(config, 2, 7, 5) == 3 * traced
    else:
        assert language_model_flops(config, 2, 7) == 3 * traced
