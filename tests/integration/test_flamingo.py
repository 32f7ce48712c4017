"""Flamingo: Idefics of transformers, decoding, exports, and training on pictures in texts.

The fixtures are made by ``tests/fixtures/make_flamingo.py``.
"""

import dataclasses
import functools
import json
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import safetensors.numpy

from jaxformer import Llama, LlamaConfig, load_model
from jaxformer.errors import UserError
from jaxformer.inference.weights import TrainedModel
from jaxformer.interop.export import export_model
from jaxformer.interop.huggingface.importer import import_huggingface
from jaxformer.models.stepwise import step_fn

from .families import imported, relative_difference, write_model

pytest.importorskip("tokenizers")

NAMES = ["idefics", "idefics_norms"]
LIMIT = 8


class Found(NamedTuple):
    logits: Any  # [B, T, V] of whole texts
    cached: Any  # [B, T, V] token by token, after a prompt
    greedy: Any  # [B, LIMIT]


def inputs_of(name):
    """Returns the pictures, the tokens and the prompts of a fixture, in our ids."""
    family = imported(name)
    ours = family.trained.tokenizer.our_ids
    outputs = family.outputs
    return outputs["pixels"], ours[outputs["tokens"]], ours[outputs["prompts"]]


@functools.cache
def computed(name):
    """Returns all that transformers has computed, by one program."""
    family = imported(name)
    model: Any
    model, params = load_model(family.workdir)
    picture = model.config.picture_token
    # As in the fixture: neither the end nor the marks of pictures.
    ours = family.trained.tokenizer.our_ids
    fake = ours[family.trained.tokenizer.their_ids[picture] - 1]
    forbidden = np.array([1, picture, fake])

    def without_forbidden(logits, context):
        return logits.at[:, :, forbidden].set(-np.inf)

    def start(variables, images, prompts, beams, capacity):
        num_seen = (prompts == picture).sum(axis=1)
        sizes = {"num_beams": beams, "capacity": capacity}
        return model.apply(variables, images, num_seen, **sizes, method="start")

    def search(variables, images, prompts):
        algorithm = dataclasses.replace(
            family.trained.config.search,
            beam_size=1,
            constraints=(without_forbidden,),
        )
        cache = start(variables, images, prompts, 1, prompts.shape[1] + LIMIT)
        length = prompts.shape[1] - 1  # The search itself reads the last token.
        _, cache = model.apply(variables, prompts, cache, length, method="prefill")

        limits = np.full(len(prompts), LIMIT)
        state = algorithm.start(cache, limits, LIMIT, first_tokens=prompts[:, -1])
        state = algorithm.advance(step_fn(model, variables["params"]), state, LIMIT)
        return algorithm.finalize(state).tokens[:, 0]

    def step_by_step(variables, images, tokens, prompt_length):
        length = tokens.shape[1]
        prompts = tokens[:, :prompt_length]
        cache = start(variables, images, prompts, 1, length)
        features, cache = model.apply(variables, prompts, cache, prompt_length, method="prefill")
        logits = [model.apply(variables, features, method="logits")]

        step = step_fn(model, variables["params"])
        for place in range(prompt_length, length):
            found, cache = step(tokens[:, place : place + 1], cache)
            logits.append(found)
        return jax.numpy.concatenate(logits, axis=1)

    @jax.jit
    def run(params, images, tokens, prompts):
        variables = {"params": params}
        return Found(
            logits=model.apply(variables, images, tokens),
            cached=step_by_step(variables, images, tokens, prompt_length=10),
            greedy=search(variables, images, prompts),
        )

    return Found(*map(np.asarray, run(params, *inputs_of(name))))


@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_transformers(name):
    family = imported(name)
    ours = family.trained.tokenizer.our_ids
    expected = family.outputs["logits"]

    found = computed(name)
    assert relative_difference(found.logits[..., ours], expected) < 1e-5
    assert relative_difference(found.cached[..., ours], expected) < 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_greedy_search_equals_transformers(name):
    family = imported(name)
    theirs = family.trained.tokenizer.their_ids
    np.testing.assert_array_equal(theirs[computed(name).greedy], family.outputs["greedy"])


@pytest.mark.parametrize("name", NAMES)
def test_exports_are_the_files_of_the_import(name, tmp_path):
    folder = write_model(name, tmp_path / "model")
    export_model("safetensors", imported(name).workdir, tmp_path / "out")

    arrays = safetensors.numpy.load_file(folder / "model.safetensors")
    exported = safetensors.numpy.load_file(tmp_path / "out" / "model.safetensors")
    # The norm of the pooled output, which the model does not read.
    unread = {name for name in arrays if "post_layernorm" in name}
    assert len(unread) == 2
    assert exported.keys() == arrays.keys() - unread
    for tensor, array in exported.items():
        np.testing.assert_array_equal(array, arrays[tensor])

    import_huggingface(tmp_path / "out", tmp_path / "again")
    again = json.loads((tmp_path / "again" / "config.json").read_text())
    assert again == json.loads((imported(name).workdir / "config.json").read_text())
    fields = json.loads((folder / "config.json").read_text())
    ours = json.loads((tmp_path / "out" / "config.json").read_text())
    for field in ("vocab_size", "additional_vocab_size", "alpha_type", "architectures"):
        assert ours[field] == fields[field]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("use_resampler", False, "expected use_resampler to be True: got False"),
        ("alpha_type", "matrix", "expected alpha_type to be float or vector: got 'matrix'"),
        ("cross_layer_interval", 3, "model.gated_every must divide model.num_layers=4: got 3"),
        ("other_gates", 2, "jaxformer does not know other_gates=2"),
        ("perceiver_config", None, "expected perceiver_config to be an object with fields"),
        (
            "additional_vocab_size",
            1,
            "a tokenizer with the token <image>, got one without",
        ),
        ("architectures", ["IdeficsForClasses"], "expected architectures of a head"),
    ],
)
def test_other_models_are_refused_by_name(field, value, message, tmp_path):
    folder = write_model("idefics", tmp_path / "model")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    with pytest.raises(UserError, match=message):
        import_huggingface(folder, tmp_path / "run")


def test_fields_of_published_files_change_nothing(tmp_path):
    """transformers 5.24 has equal logits with and without them."""
    folder = write_model("idefics", tmp_path / "model")
    path = folder / "config.json"
    values = json.loads(path.read_text()) | {"max_sequence_length": 2048}
    values["vision_config"]["vision_model_name"] = "laion/CLIP-ViT-H-14-laion2B-s32B-b79K"
    path.write_text(json.dumps(values))

    import_huggingface(folder, tmp_path / "run")
    assert TrainedModel.load(tmp_path / "run").config == imported("idefics").trained.config


def test_tokens_depend_on_the_pictures_before_them_only():
    family = imported("idefics")
    model: Any
    model, params = load_model(family.workdir)
    images, tokens, _ = inputs_of("idefics")
    apply = jax.jit(model.apply)
    before = np.asarray(apply({"params": params}, images, tokens))
    np.testing.assert_allclose(before, computed("idefics").logits, rtol=1e-5, atol=1e-5)

    # The first text has pictures at 0, 4 and 9; the second one at 3 and 8, and a picture more.
    places = [[0, 4, 9], [3, 8, tokens.shape[1]]]
    for number in range(3):
        others = images.copy()
        others[:, number] += 1
        after = np.asarray(apply({"params": params}, others, tokens))
        for row in range(2):
            changes = np.abs(after[row] - before[row]).max(axis=1)
            first = places[row][number]
            assert not changes[:first].any()
            assert (changes[first:] > 1e-4).all()

    # A mask may show other pictures: here each token sees none.
    blind = np.zeros((*tokens.shape, 3), bool)
    unseen = jax.jit(model.apply)({"params": params}, images, tokens, seen=blind)
    closed = jax.jit(model.apply)({"params": params}, images + 1, tokens, seen=blind)
    np.testing.assert_array_equal(unseen, closed)


def test_closed_gates_leave_the_language_model_as_it_was():
    """Compares with a Llama of the same parameters, bit for bit."""
    family = imported("idefics")
    model: Any
    model, params = load_model(family.workdir)
    images, tokens, _ = inputs_of("idefics")

    gated = dict(params["decoder"]["gated"])
    for gate in ("attention_gate", "feed_forward_gate"):
        gated[gate] = np.zeros_like(gated[gate])
    decoder = params["decoder"] | {"gated": gated}

    section = LlamaConfig(
        **{
            field.name: getattr(model.config, field.name)
            for field in dataclasses.fields(LlamaConfig)
            if field.name != "architecture"
        }
    )
    names = ("embedding", "output_embedding")
    own = {name: params[name] for name in names}
    own["decoder"] = {name: decoder[name] for name in ("layers", "norm")}

    found = jax.jit(model.apply)({"params": params | {"decoder": decoder}}, images, tokens)
    expected = jax.jit(Llama(section).apply)({"params": own}, tokens)
    np.testing.assert_array_equal(found, expected)
    assert not np.array_equal(found, computed("idefics").logits)
