"""Decoding with a cache equals the full pass, for all models."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from jaxformer.config import ModelConfig
from jaxformer.inference.parameter_arrays import prepare_params
from jaxformer.kinds.language_modeling import LANGUAGE_MODELING
from jaxformer.kinds.translation import TRANSLATION
from jaxformer.models.gpt2 import GPT2, GPT2Config
from jaxformer.models.language_model import LanguageModel
from jaxformer.models.llama import Llama, LlamaConfig
from jaxformer.models.recurrent import Recurrent, RecurrentConfig
from jaxformer.models.student import Student, StudentConfig
from jaxformer.models.t5 import T5, T5Config
from jaxformer.models.transformer import Transformer

from ...profiles import by_profile
from ..nn.weights import random_params

TINY = ModelConfig(
    vocab_size=37,
    d_model=16,
    d_ff=24,
    num_heads=4,
    d_k=3,
    d_v=5,
    num_layers=1,
    max_length=32,
)
SENTENCES = 2
BEAMS = 3
STEPS = 8
SIZES = {"vocab_size": 37, "d_model": 16, "d_ff": 24, "num_heads": 4, "max_length": 32}
CONFIGS = {
    GPT2: GPT2Config(num_layers=2, **SIZES),
    Student: StudentConfig(num_layers=1, **SIZES),
    Llama: LlamaConfig(num_layers=2, num_kv_heads=2, **SIZES),
    Recurrent: RecurrentConfig(vocab_size=37, d_model=16, hidden_size=12, max_length=32),
    T5: T5Config(num_layers=1, num_decoder_layers=2, num_buckets=6, max_distance=9, **SIZES),
}
CAPACITY = 16  # Also of a cache for 9 tokens, since capacities are rounded up.

GEMMA = {
    "norm_unit_offset": True,
    "scaled_embedding": True,
    "rotary_scaling": "llama3",
    "rotary_factor": 8.0,
    "rotary_original_length": 16,
}
NEO = {"window": 3, "window_every": 2, "scaled_scores": False, "attention_biases": "output"}
GPTJ = {
    "positions": "rotary",
    "rotary_size": 2,
    "is_parallel": True,
    "attention_biases": "none",
    "embeddings": "separate",
    "output_bias": True,
}
WIDE = {"scaled_embedding": True, "embedding_norm": True, "embedding_size": 6}
EVERY = {"norm_position": "pre", "positions": "learned", "biases": True}
# Every option occurs in one of the first cases of each model.
CASES = [
    (Transformer, {"num_layers": 2}),
    (Transformer, {**EVERY, "activation": "swish", "embeddings": "separate", "qk_norm": True}),
    (LanguageModel, {"compute_dtype": "int8", "positions": "rotary", "d_k": 4, "qk_norm": True}),
    (LanguageModel, {**EVERY, "compute_dtype": "bfloat16", "activation": "gelu"}),
    (GPT2, {"absent_tokens": "pad bos unk"}),
    (GPT2, {**NEO, "compute_dtype": "int8"}),
    (GPT2, {**GPTJ, "absent_tokens": "pad"}),
    (GPT2, {**WIDE, "positions": "alibi", "compute_dtype": "bfloat16"}),
    (Student, {"compute_dtype": "int8", "positions": "tensor2tensor", "qk_norm": True}),
    (Llama, {"compute_dtype": "int8", "attention_biases": True, "qk_norm": True, **GEMMA}),
    (Recurrent, {"compute_dtype": "int8"}),
    (T5, {"compute_dtype": "int8", "d_k": 3, "bias_per_layer": True, "gated": True}),
]
MORE = [
    (Recurrent, {}),
    (Recurrent, {"compute_dtype": "bfloat16"}),
    (Llama, {"embeddings": "tied"}),
    (Llama, GEMMA),
    (T5, {"absent_tokens": "pad", "embeddings": "separate", "scaled_output": False}),
    (T5, {"compute_dtype": "bfloat16"}),
    (GPT2, {"compute_dtype": "int8"}),
    (GPT2, {**GPTJ, "compute_dtype": "int8"}),
    (GPT2, {**WIDE, "positions": "fairseq"}),
    (GPT2, {**NEO, "compute_dtype": "bfloat16"}),
    (GPT2, {"norm_position": "post", "embedding_size": 12, "compute_dtype": "bfloat16"}),
    (Transformer, {"positions": "rotary", "d_k": 4}),
    (Transformer, {**EVERY, "compute_dtype": "int8"}),
    (LanguageModel, {"num_layers": 2}),
    (LanguageModel, {"compute_dtype": "bfloat16", "norm_position": "pre"}),
]


def random_tokens(seed, *shape):
    return np.random.default_rng(seed).integers(3, 37, shape).astype(np.int32)


class Model:
    """A model with random parameters; each call is compiled once."""

    def __init__(self, kind, changes):
        config = dataclasses.replace(CONFIGS.get(kind, TINY), **changes)
        self.module = kind(config)
        self.has_source = issubclass(kind, Transformer)
        self.source = random_tokens(0, SENTENCES, 6)
        self.source[1, 4:] = 0

        # Parameters are drawn in float32, and stored as the config says.
        exact = kind(dataclasses.replace(config, compute_dtype="float32"))
        token = np.ones((1, 1), np.int32)
        inputs = (token, token) if self.has_source else (token,)
        params = random_params(exact, *inputs)
        task = TRANSLATION if self.has_source else LANGUAGE_MODELING
        prepare = jax.jit(lambda params: prepare_params(config, params, task))

        self.apply = functools.partial(self.module.apply, {"params": prepare(params)})
        self.steps = jax.jit(self.steps)

    @functools.cached_property
    def cache(self):
        start = functools.partial(self.apply, num_beams=BEAMS, capacity=9, method="start")
        return jax.jit(start)(self.source)

    def full(self, tokens):
        """Returns the logits of whole texts: [sentences, beams, length, vocabulary]."""
        rows = tokens.reshape(SENTENCES * BEAMS, -1)
        inputs = (rows,)
        if self.has_source:
            inputs = (self.source.repeat(BEAMS, axis=0), rows)
        logits = np.asarray(jax.jit(self.apply)(*inputs))
        return logits.reshape(*tokens.shape, -1)

    @functools.cached_property
    def prefill(self):
        @jax.jit
        def prefill(prompt, cache, length):
            features, cache = self.apply(prompt, cache, length, method="prefill")
            return self.apply(features, method="logits"), cache

        return prefill

    def steps(self, cache, tokens):
        """Returns the logits after each token, fed one by one, and the last cache."""

        def one(cache, newest):
            logits, cache = self.apply(newest, cache, method="step")
            return cache, logits

        cache, logits = jax.lax.scan(one, cache, tokens.transpose(2, 0, 1))
        return logits.transpose(1, 2, 0, 3), cache


@pytest.mark.parametrize(("kind", "changes"), by_profile(CASES, nightly=CASES + MORE))
def test_steps_and_prefill_equal_the_full_pass(kind, changes):
    """Also if only some tokens are kept: the others are overwritten and never attended to."""
    model = Model(kind, changes)
    # In bfloat16, sums in another order round differently.
    tolerance = {"bfloat16": 2e-2, "int8": 1e-4}.get(changes.get("compute_dtype"), 1e-5)

    def check(found, expected, message):
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance, err_msg=message)
        assert (found.argmax(-1) == expected.argmax(-1)).all()

    tokens = random_tokens(1, SENTENCES, BEAMS, CAPACITY)
    tokens[:, 1:, :3] = tokens[:, :1, :3]  # The beams of a sentence have one prompt.
    prompt = tokens[:, 0, :5]
    full = model.full(tokens)  # [B, N, T, V]
    after_3 = slice(3, 3 + STEPS)
    after_5 = slice(5, 5 + STEPS)

    stepped, _ = model.steps(model.cache, tokens[:, :, :STEPS])
    check(np.asarray(stepped), full[:, :, :STEPS], "steps")

    logits, cache = model.prefill(prompt, model.cache, 3)
    check(np.asarray(logits)[:, :3], full[:, 0, :3], "3 of 5 prefilled tokens")
    stepped, _ = model.steps(cache, tokens[:, :, after_3])
    check(np.asarray(stepped), full[:, :, after_3], "steps after 3 prefilled tokens")

    # The first beam continues the whole prompt.
    logits, cache = model.prefill(prompt, model.cache, 5)
    check(np.asarray(logits), full[:, 0, :5], "5 prefilled tokens")
    stepped, cache = model.steps(cache, tokens[:, :, after_5])
    check(np.asarray(stepped)[:, 0], full[:, 0, after_5], "steps after 5 prefilled tokens")

    # A full cache gives NaN instead of wrong logits.
    last = np.roll(tokens, 3, axis=2)[:, :, :STEPS]
    stepped, _ = model.steps(cache, last)
    stepped = np.asarray(stepped)
    check(stepped[:, 0, :3], full[:, 0, 13:], "last steps")
    assert np.isnan(stepped[:, :, 3:]).all()
