"""Imported CLIP against transformers; the fixtures are made by ``tests/fixtures/make_clip.py``."""

import functools
import json
import pathlib
import shutil

import jax
import numpy as np
import pytest
import safetensors.numpy

from jaxformer import ImageTextMatcher, load_model
from jaxformer.cli import main
from jaxformer.errors import UserError
from jaxformer.inference.conversions import quantize
from jaxformer.interop.export import export_model
from jaxformer.interop.huggingface.importer import import_huggingface

from . import pages
from .families import imported, relative_difference, write_model

pytest.importorskip("tokenizers")

NAMES = ["clip", "clip_gelu", "clip_files"]
TEXTS = ["A photo of a cat!", "two dogs, and it's RED", "", 'the "old" house in 1984']
LINES = pathlib.Path(__file__).parents[1] / "fixtures" / "tokenizers" / "lines.txt"


@functools.cache
def outputs_of(name):
    """Returns our embeddings and logits of the fixture's pictures and texts."""
    family = imported(name)
    model, params = load_model(family.workdir)
    pixels = model.config.scale_pixels(family.outputs["images"])
    tokens = family.trained.tokenizer.our_ids[family.outputs["tokens"]]

    @jax.jit
    def run(params, pixels, tokens):
        def call(module):
            images, texts = module.embeddings(pixels, tokens)
            return {
                "image_embeddings": images,
                "text_embeddings": texts,
                "logits": module(pixels, tokens),
            }

        return model.apply({"params": params}, method=call)

    return jax.device_get(run(params, pixels, tokens))


@pytest.mark.parametrize("name", NAMES)
def test_embeddings_and_logits_equal_transformers(name):
    expected = imported(name).outputs
    for output, found in outputs_of(name).items():
        assert relative_difference(found, expected[output]) < 1e-5, output


@pytest.mark.parametrize("name", NAMES)
def test_token_ids_equal_those_of_autotokenizer(name):
    family = imported(name)
    tokenizer = family.trained.tokenizer

    found = []
    for line in LINES.read_text(encoding="utf-8").split("\n"):
        ids = tokenizer.encode_prompt(line)
        found += [*tokenizer.their_ids[ids], -1]

    assert found == family.outputs["ids"].tolist()


@pytest.mark.parametrize("name", NAMES)
def test_an_export_is_the_import_bit_for_bit(name, tmp_path):
    family = imported(name)
    export_model("safetensors", family.workdir, tmp_path / "out")

    expected = safetensors.numpy.load_file(family.folder / "model.safetensors")
    found = safetensors.numpy.load_file(tmp_path / "out" / "model.safetensors")
    assert found.keys() == expected.keys()
    for tensor, array in expected.items():
        assert found[tensor].shape == array.shape, tensor
        np.testing.assert_array_equal(found[tensor], array, err_msg=tensor)

    theirs = json.loads((family.folder / "preprocessor_config.json").read_text())
    ours = json.loads((tmp_path / "out" / "preprocessor_config.json").read_text())
    assert ours == theirs


@functools.cache
def matcher():
    return ImageTextMatcher.load(imported("clip").workdir)


def test_probabilities_are_those_of_the_logits():
    images = imported("clip").outputs["images"]

    found = matcher().probabilities(images, TEXTS)

    powers = np.exp(imported("clip").outputs["logits"].astype(np.float64))
    expected = powers / powers.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_embeddings_have_length_one_and_the_template_surrounds_a_label():
    found = matcher().text_embeddings(["a photo of a cat!", "a dog"])
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)

    images = imported("clip").outputs["images"]
    whole = matcher().probabilities(images, ["a photo of a cat", "a photo of a dog"])
    by_template = matcher().probabilities(images, ["cat", "dog"], "a photo of a {}")
    np.testing.assert_array_equal(by_template, whole)


def test_an_int8_copy_is_close(tmp_path):
    quantize(imported("clip").workdir, tmp_path / "int8")
    images = imported("clip").outputs["images"]

    found = ImageTextMatcher.load(tmp_path / "int8").similarity(images, TEXTS)

    np.testing.assert_allclose(found, matcher().similarity(images, TEXTS), atol=0.05)


IMAGE = np.zeros((1, 8, 8, 3), np.uint8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.probabilities(IMAGE, ["a"], "a photo"), "template: expected {} for the label"),
        (lambda m: m.probabilities(IMAGE, []), "labels: expected at least one, got none"),
        (lambda m: m.image_embeddings(IMAGE[:, :4]), r"expected pictures, uint8 \[N, 8, 8, 3\]"),
        (lambda m: m.text_embeddings(["ab " * 60]), "texts:1: expected at most 40 tokens"),
    ],
)
def test_inputs_that_do_not_suit_the_model_are_refused(call, message):
    with pytest.raises(UserError, match=message):
        call(matcher())


def test_the_page_runs_as_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(imported("clip").workdir, "runs/clip")
    np.savez("photos.npz", images=imported("clip").outputs["images"])

    names = pages.execute("pictures_and_text.md", "CLIP")

    assert names["seen"].shape == (3, 10)
    assert names["read"].shape == (1, 10)
    assert capsys.readouterr().out.splitlines()[-1] in "012"


def changed_model(folder, file="config.json", section=None, **fields):
    """Writes the model of a fixture with other fields in one of its files."""
    write_model("clip", folder)
    path = folder / file
    values = json.loads(path.read_text())
    place = values if section is None else values[section]
    place |= fields
    path.write_text(json.dumps(values))
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"section": "vision_config", "hidden_act": "gelu"},
            "expected vision_config.hidden_act to be text_config.hidden_act='quick_gelu'",
        ),
        (
            {"section": "text_config", "eos_token_id": 5},
            "expected text_config.eos_token_id to be 541, the id of <|endoftext|>, or 2 if",
        ),
        (
            {"section": "text_config", "is_decoder": True},
            "does not know text_config.is_decoder=True",
        ),
        (
            {"text_config_dict": {"hidden_size": 24}},
            "expected text_config_dict to repeat text_config: got hidden_size=24",
        ),
        (
            {"architectures": ["CLIPForImageClassification"]},
            "expected architectures of a head that jaxformer has",
        ),
        ({"model_type": "clip_vision_model"}, "expected model_type to be"),
        (
            {"file": "preprocessor_config.json", "do_normalize": False},
            "expected do_normalize to be True",
        ),
    ],
)
def test_other_models_are_refused_by_name(change, message, tmp_path):
    folder = changed_model(tmp_path / "model", **change)
    with pytest.raises(UserError, match=message.replace("|", r"\|")):
        import_huggingface(folder, tmp_path / "run")


def test_a_legacy_end_needs_the_largest_id(tmp_path):
    """The model of transformers reads the token with the largest id, here an added one."""
    folder = changed_model(tmp_path / "model", section="text_config", vocab_size=543)
    arrays = safetensors.numpy.load_file(folder / "model.safetensors")
    table = "text_model.embeddings.token_embedding.weight"
    arrays[table] = np.vstack([arrays[table], arrays[table][:1]])
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")

    with pytest.raises(UserError, match=r"expected text_config\.eos_token_id to be 541"):
        import_huggingface(folder, tmp_path / "run")


def test_repeated_sections_and_old_buffers_are_accepted(tmp_path):
    folder = changed_model(tmp_path / "model", text_config_dict={"hidden_size": 16})
    arrays = safetensors.numpy.load_file(folder / "model.safetensors")
    arrays["text_model.embeddings.position_ids"] = np.arange(40)[None]
    arrays["vision_model.embeddings.position_ids"] = np.arange(5)[None]
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")

    import_huggingface(folder, tmp_path / "run")


def test_the_command_prints_the_best_label_of_each_picture(tmp_path, capsys):
    images = imported("clip").outputs["images"]
    np.savez(tmp_path / "in.npz", images=images, labels=np.zeros(3, int))
    (tmp_path / "labels.txt").write_text("cat\nred dog\nold house\n")
    expected = matcher().probabilities(images, ["cat", "red dog", "old house"], "a {}")

    words = ["classify", "--workdir", str(imported("clip").workdir), "--probabilities"]
    words += ["--images", str(tmp_path / "in.npz"), "--texts", str(tmp_path / "labels.txt")]
    assert main([*words, "--template", "a {}"]) == 0

    out, err = capsys.readouterr()
    best = expected.argmax(axis=1)
    names = np.array(["cat", "red dog", "old house"])[best]
    rows = [
        f"{probability:.4f}\t{name}"
        for probability, name in zip(expected.max(axis=1), names, strict=True)
    ]
    assert out.splitlines() == rows
    assert f"{(best == 0).sum()} of 3" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--texts", "labels.txt"], "--texts and --template need --images"),
        (["--images", "in.npz", "--template", "a {}"], "--template needs --texts"),
        (
            ["--images", "in.npz", "--texts", "labels.txt", "--attention", "a.png"],
            "--attention is for a classifier of pictures",
        ),
        (["--images", "in.npz"], "expected a classifier of pictures, got a model of pictures and"),
        (["--images", "in.npz", "--texts", "empty.txt"], "expected a label on each line, got none"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("in.npz", images=IMAGE)
    pathlib.Path("labels.txt").write_text("cat\n")
    pathlib.Path("empty.txt").write_text("")

    assert main(["classify", "--workdir", str(imported("clip").workdir), *options]) == 2
    assert message in capsys.readouterr().err
