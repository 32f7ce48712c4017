"""Imported decoders of all families against transformers: logits, caches, and searches.

The fixtures are made by ``tests/fixtures/make_decoders.py``. Together, the models of a family have
every option that its layout accepts.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import safetensors.numpy

from jaxformer import load_model
from jaxformer.inference.weights import TrainedModel
from jaxformer.interop.export import export_model
from jaxformer.interop.huggingface.importer import import_huggingface
from jaxformer.models.stepwise import step_fn

from ..fixtures.random_weights import read_arrays
from ..profiles import by_profile
from .families import imported, relative_difference

pytest.importorskip("tokenizers")

MODELS = by_profile(
    ["llama3", "llama_linear", "gemma_biases"],
    nightly=["llama3", "llama3_tied", "llama_linear", "gemma", "gemma_biases"],
)
LIMIT = 12


class Found(NamedTuple):
    logits: Any  # [B, T, V] of whole texts
    cached: Any  # [B, T, V] token by token, after a prompt
    greedy: Any  # [B, LIMIT]
    beam: Any


@functools.cache
def computed(name):
    """Returns all that transformers has computed, by one program."""
    _, workdir, trained, outputs = imported(name)
    ours = trained.tokenizer.our_ids
    model: Any
    model, params = load_model(workdir)

    # Special tokens except the end, and two rows that have no token.
    unused = np.array([0, 2, 3, *ours[-2:]])

    def without_unused(logits, context):
        return logits.at[:, :, unused].set(-np.inf)

    def search(variables, prompts, beam_size):
        algorithm = dataclasses.replace(
            trained.config.search,
            beam_size=beam_size,
            constraints=(without_unused,),
        )
        start = functools.partial(model.apply, variables, method="start")
        cache = start(prompts, num_beams=beam_size, capacity=prompts.shape[1] + LIMIT)
        length = prompts.shape[1] - 1  # The search itself reads the last token.
        _, cache = model.apply(variables, prompts, cache, length, method="prefill")

        limits = np.full(len(prompts), LIMIT)
        state = algorithm.start(cache, limits, LIMIT, first_tokens=prompts[:, -1])
        state = algorithm.advance(step_fn(model, variables["params"]), state, LIMIT)
        return algorithm.finalize(state).tokens[:, 0]

    def step_by_step(variables, tokens, prompt_length):
        length = tokens.shape[1]
        cache = model.apply(variables, tokens, num_beams=1, capacity=length, method="start")
        prompts = tokens[:, :prompt_length]
        features, cache = model.apply(variables, prompts, cache, prompt_length, method="prefill")
        logits = [model.apply(variables, features, method="logits")]

        step = step_fn(model, variables["params"])
        for place in range(prompt_length, length):
            found, cache = step(tokens[:, place : place + 1], cache)
            logits.append(found)
        return jax.numpy.concatenate(logits, axis=1)

    @jax.jit
    def run(params, tokens, prompts):
        variables = {"params": params}
        return Found(
            logits=model.apply(variables, tokens),
            cached=step_by_step(variables, tokens, prompt_length=11),
            greedy=search(variables, prompts, beam_size=1),
            beam=search(variables, prompts, beam_size=4),
        )

    found = run(params, ours[outputs["tokens"]], ours[outputs["prompts"]])
    return Found(*map(np.asarray, found))


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_transformers(name):
    family = imported(name)
    ours = family.trained.tokenizer.our_ids
    expected = family.outputs["logits"]

    found = computed(name)
    assert relative_difference(found.logits[..., ours], expected) < 1e-5
    assert relative_difference(found.cached[..., ours], expected) < 1e-5


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("search", ["greedy", "beam"])
def test_searches_equal_transformers(name, search):
    family = imported(name)
    theirs = family.outputs[search]
    expected = np.where(theirs < 0, 0, family.trained.tokenizer.our_ids[theirs])

    np.testing.assert_array_equal(getattr(computed(name), search), expected)


@pytest.mark.parametrize("name", MODELS)
def test_an_export_is_the_imported_model_bit_for_bit(name, tmp_path):
    folder, workdir, trained, _ = imported(name)
    export_model("safetensors", workdir, tmp_path / "out")

    found = safetensors.numpy.load_file(tmp_path / "out" / "model.safetensors")
    expected = read_arrays(folder)
    assert found.keys() == expected.keys()
    for tensor, array in expected.items():
        np.testing.assert_array_equal(found[tensor], array, strict=True)

    import_huggingface(tmp_path / "out", tmp_path / "again")
    again = TrainedModel.load(tmp_path / "again")
    assert again.config.model == trained.config.model
    jax.tree.map(np.testing.assert_array_equal, again.params, trained.params)
