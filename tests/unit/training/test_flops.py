"""The formula against a count of the matmuls that JAX traces."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxformer.models.gpt2 import GPT2
from jaxformer.models.language_model import LanguageModel
from jaxformer.models.llama import Llama
from jaxformer.models.t5 import T5
from jaxformer.models.transformer import Transformer
from jaxformer.nn import Keys
from jaxformer.training.flops import language_model_flops, training_flops

from ...multiplications import multiplications

SIZES = {"vocab_size": 29, "d_model": 12, "d_ff": 20, "num_heads": 4, "num_layers": 3}


CASES = [
    {},
    {"d_k": 3, "d_v": 5},
    {"num_heads": 1, "num_layers": 1},
    {"embeddings": "separate", "target_vocab_size": 11},
]


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        *((Transformer, sizes) for sizes in CASES),
        *((LanguageModel, sizes) for sizes in CASES[:3]),
        (GPT2, {}),
        (Llama, {"d_k": 2}),
        (Llama, {"d_k": 4, "num_kv_heads": 2}),
        (T5, {"num_decoder_layers": 2, "d_k": 5}),
        (T5, {"gated": True}),
    ],
)
def test_the_formula_counts_what_is_traced(kind, sizes):
    config = kind.section(**(SIZES | sizes))
    model = kind(config)
    has_encoder = issubclass(kind, Transformer)

    inputs = [np.ones((2, 7), np.int32)]
    if has_encoder:
        inputs.append(np.ones((2, 5), np.int32))

    key = jax.random.key(0)
    variables = jax.eval_shape(lambda: model.init(key, *inputs))
    forward = jax.make_jaxpr(lambda v: model.apply(v, *inputs))(variables)
    traced = 2 * multiplications(forward.jaxpr)

    # The backward pass has two matmuls for each of the forward pass.
    if has_encoder:
        assert training_flops(config, 2, 7, 5) == 3 * traced
    else:
        assert language_model_flops(config, 2, 7) == 3 * traced


@pytest.mark.parametrize("window", [1, 3, 6, 40])
def test_a_query_counts_the_keys_that_the_mask_of_its_window_allows(window):
    """No query sees more keys than the one in the middle, where the window is whole."""
    config = LanguageModel.section(**SIZES)
    near = dataclasses.replace(config, window=window)

    def hidden(length, causal):
        keys = Keys.of_sequence(length, window=window, causal=causal)
        seen = keys.allowed().sum(axis=-1)  # by each query
        unseen = length - int(seen.max())
        # Three passes, three layers, and two operations for each entry of d_k and of d_v.
        return 3 * 3 * 2 * (12 + 12) * length * unseen

    for causal in (True, False):
        full = language_model_flops(config, 2, 11, causal)
        counted = language_model_flops(near, 2, 11, causal)
        assert full - counted == 2 * hidden(11, causal)

    full = training_flops(config, 1, 11, 8)
    counted = training_flops(near, 1, 11, 8)
    uncounted = hidden(11, causal=False) + hidden(8, causal=True)
    assert full - counted == uncounted
