"""Imported decoders of all families against transformers: logits, caches, and searches.

The fixtures are made by ``tests/fixtures/make_decoders.py``. Together, the models of a family have
every option that its layout accepts.
"""

import dataclasses
import functools
import itertools
import json
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import safetensors.numpy
from jax.sharding import NamedSharding, PartitionSpec

from jaxformer import Generator, MeshConfig, StreamConfig, TrainingConfig, load_model, train
from jaxformer.inference.weights import TrainedModel
from jaxformer.inference.windows import Prompt
from jaxformer.interop.export import export_model
from jaxformer.interop.huggingface.importer import import_huggingface
from jaxformer.models.stepwise import step_fn
from jaxformer.nn import use_backend
from jaxformer.nn.backend import backend
from jaxformer.training.mesh import make_mesh

from ..fixtures.random_weights import read_arrays
from ..profiles import by_profile
from .families import imported, relative_difference, write_model

pytest.importorskip("tokenizers")

MODELS = by_profile(
    ["llama3", "gemma_biases", "opt_350m", "gpt_neo", "gptj", "bloom_six", "xglm"],
    nightly=[
        *("llama3", "llama3_tied", "llama_linear", "gemma", "gemma_biases"),
        *("opt", "opt_narrow", "opt_350m", "gpt_neo", "gpt_neo_third"),
        *("gptj", "gptj_tied", "bloom", "bloom_six", "xglm", "xglm_unscaled"),
    ],
)
LIMIT = 12


class Found(NamedTuple):
    logits: Any  # [B, T, V] of whole texts
    cached: Any  # [B, T, V] token by token, after a prompt
    packed: Any  # [B, T, V] of two texts of other lengths in one row
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

    def packed(variables, tokens):
        first = tokens[:, :9]
        second = tokens[:, :5]
        row = jax.numpy.concatenate([first, second], axis=1)
        is_second = np.arange(14) >= 9
        segments = np.broadcast_to(1 + is_second, row.shape)
        positions = np.broadcast_to(np.arange(14) - 9 * is_second, row.shape)
        packing = {"segments": segments, "positions": positions}
        return model.apply(variables, row, **packing)

    @jax.jit
    def run(params, tokens, prompts):
        variables = {"params": params}
        return Found(
            logits=model.apply(variables, tokens),
            cached=step_by_step(variables, tokens, prompt_length=11),
            packed=packed(variables, tokens),
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
def test_texts_in_one_row_do_not_see_each_other(name):
    found = computed(name)
    packed = found.packed
    np.testing.assert_allclose(packed[:, :9], found.logits[:, :9], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(packed[:, 9:], found.logits[:, :5], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("search", ["greedy", "beam"])
def test_searches_equal_transformers(name, search):
    family = imported(name)
    theirs = family.outputs[search]
    expected = np.where(theirs < 0, 0, family.trained.tokenizer.our_ids[theirs])

    np.testing.assert_array_equal(getattr(computed(name), search), expected)


def test_generation_stops_at_each_of_several_ends(tmp_path):
    """As ``generate`` does, which takes the ends from generation_config.json first."""
    family = imported("llama3")
    search = dataclasses.replace(family.trained.config.search, beam_size=1)
    generator = Generator.load(family.workdir, search=search)
    rows = [Prompt(generator.prompt_ids(text), number) for number, text in enumerate(TEXTS)]
    whole = generator._decoder(LIMIT).decode(rows)
    ids = whole[0][0].tolist()
    other = ids[3]
    their_other = int(generator.tokenizer.their_ids[other])

    folder = write_model("llama3", tmp_path / "several")
    end = family.trained.tokenizer.special["eos"]
    ends = {"eos_token_id": [their_other, end]}
    (folder / "generation_config.json").write_text(json.dumps(ends))
    import_huggingface(folder, tmp_path / "run")
    several = Generator.load(tmp_path / "run", search=search)
    assert several.tokenizer.special["eos"] == end
    assert several.tokenizer.other_ends == (other,)

    found = several._decoder(LIMIT).decode(rows)
    for row, hypotheses in whole.items():
        ids = hypotheses[0].tolist()
        if other in ids:
            ids = [*ids[: ids.index(other)], 1]
        assert [token for token in found[row][0].tolist() if token] == ids
    assert found[0][0].tolist().index(1) == 3

    export_model("safetensors", tmp_path / "run", tmp_path / "out")
    written = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert written["eos_token_id"] == [end, their_other]


@pytest.mark.parametrize("name", MODELS)
def test_an_export_is_the_imported_model_bit_for_bit(name, tmp_path):
    folder, workdir, trained, _ = imported(name)
    export_model("safetensors", workdir, tmp_path / "out")

    found = safetensors.numpy.load_file(tmp_path / "out" / "model.safetensors")
    expected = read_arrays(folder)
    if name.startswith("opt"):  # No token reads these rows.
        expected["model.decoder.embed_positions.weight"][:2] = 0
    assert found.keys() == expected.keys()
    for tensor, array in expected.items():
        np.testing.assert_array_equal(found[tensor], array, strict=True)

    import_huggingface(tmp_path / "out", tmp_path / "again")
    again = TrainedModel.load(tmp_path / "again")
    assert again.config.model == trained.config.model
    jax.tree.map(np.testing.assert_array_equal, again.params, trained.params)


# New parts of layers, and matrices beside them.
PARTS = by_profile(["opt_350m", "gpt_neo"], nightly=MODELS)
TEXTS = ["the old house", "two books", "sale"]
PLAIN = dataclasses.replace(backend(), packed_int8=0, packed_bfloat16=0)


@pytest.mark.parametrize(
    ("name", "dtype"),
    by_profile(
        [("opt_350m", "int8"), ("gpt_neo", "bfloat16")],
        nightly=list(itertools.product(MODELS, ["int8", "bfloat16"])),
    ),
)
def test_lower_precision_is_close(name, dtype):
    """Also by programs that keep matrices packed, and for prompts of several lengths at a time."""
    family = imported(name)
    search = dataclasses.replace(family.trained.config.search, beam_size=2)
    generator = Generator.load(family.workdir, search=search, compute_dtype=dtype)

    model = generator.models[0].model
    tokens = family.trained.tokenizer.our_ids[family.outputs["tokens"]]
    found = jax.jit(model.apply)({"params": generator.models[0].params}, tokens)
    found = np.asarray(found)[..., family.trained.tokenizer.our_ids]
    correlation = np.corrcoef(found.ravel(), family.outputs["logits"].ravel())[0, 1]
    assert correlation > {"int8": 0.99, "bfloat16": 0.999}[dtype]

    texts = generator.continuations(TEXTS, max_tokens=6)
    with use_backend(PLAIN):
        assert generator.continuations(TEXTS, max_tokens=6) == texts


@pytest.mark.parametrize("name", PARTS)
def test_gradients_are_finite_and_the_same_with_rematerialization(name):
    family = imported(name)
    tokens = family.trained.tokenizer.our_ids[family.outputs["tokens"]]
    model: Any
    model, params = load_model(family.workdir)

    def loss(params, remat):
        logits = model.clone(remat=remat).apply({"params": params}, tokens[:, :-1])
        log_probs = jax.nn.log_softmax(logits)
        chosen = jax.numpy.take_along_axis(log_probs, tokens[:, 1:, None], axis=-1)
        return -chosen.mean()

    @jax.jit
    def gradients(params):
        return [jax.grad(loss)(params, remat) for remat in ("none", "layer")]

    found, again = jax.device_get(gradients(params))
    for gradient, same in zip(jax.tree.leaves(found), jax.tree.leaves(again), strict=True):
        assert np.isfinite(gradient).all()
        np.testing.assert_allclose(gradient, same, rtol=1e-4, atol=1e-5)


@pytest.mark.ci
@pytest.mark.parametrize("name", by_profile(["gpt_neo"], nightly=MODELS))
def test_fine_tuning_and_search_are_the_same_on_two_devices(name, tmp_path):
    family = imported(name)
    text = tmp_path / "text.txt"
    text.write_text("two books in the old house, and the old house is for sale" * 20)
    config = dataclasses.replace(
        family.trained.config,
        data=StreamConfig(file=str(text), length=12, rows=4),
        training=TrainingConfig(
            init_from=str(family.workdir), steps=1, warmup_steps=1, label_smoothing=0.0
        ),
    )

    def train_on(**mesh):
        sums = []
        own = dataclasses.replace(config, mesh=MeshConfig(**mesh))
        folder = tmp_path / "-".join(mesh)
        train(own, folder, hooks=[lambda step, state, each: sums.append(each)])
        return float(sums[0]["loss"] / sums[0]["count"]), folder

    loss, _ = train_on(data=8)
    same, folder = train_on(data=2, fsdp=2, tensor=2)
    assert np.isfinite(loss)
    assert same == pytest.approx(loss, rel=1e-5)

    search = dataclasses.replace(config.search, beam_size=2)
    generator = Generator.load(folder, search=search)
    expected = generator.continuations(TEXTS, max_tokens=6)
    mesh = make_mesh(MeshConfig(data=2), jax.devices()[:2])
    generator.models = jax.device_put(generator.models, NamedSharding(mesh, PartitionSpec()))
    assert generator.continuations(TEXTS, max_tokens=6) == expected
