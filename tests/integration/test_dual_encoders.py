"""Two encoders of transformers: imported, compared, exported, trained and used by the command.

The fixtures are made by ``tests/fixtures/make_dual_encoders.py``.
"""

import functools
import json

import jax
import numpy as np
import pytest
import safetensors.numpy

from jaxformer import (
    Config,
    ImageTextConfig,
    ImageTextMatcher,
    TrainingConfig,
    load_model,
    train,
)
from jaxformer.cli import main
from jaxformer.errors import UserError
from jaxformer.inference.conversions import quantize
from jaxformer.interop.export import export_model
from jaxformer.interop.huggingface.importer import import_huggingface

from .equal_runs import check_other_mesh, check_resumed
from .families import imported, relative_difference, write_model

pytest.importorskip("tokenizers")

NAMES = ["vit_and_bert", "vit_and_bert_wide", "clip_and_bert"]
TEXTS = ["the house", "the old house is red", "", "a cat"]


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
def test_an_export_is_the_import_bit_for_bit(name, tmp_path):
    family = imported(name)
    export_model("safetensors", family.workdir, tmp_path / "out")

    expected = safetensors.numpy.load_file(family.folder / "model.safetensors")
    found = safetensors.numpy.load_file(tmp_path / "out" / "model.safetensors")
    assert found.keys() == expected.keys()
    for tensor, array in expected.items():
        np.testing.assert_array_equal(found[tensor], array, strict=True, err_msg=tensor)

    theirs = json.loads((family.folder / "config.json").read_text())
    ours = json.loads((tmp_path / "out" / "config.json").read_text())
    for section in ("vision_config", "text_config"):
        own = ours[section]
        assert own.items() <= (theirs[section] | own).items()
        for name in ("model_type", "hidden_size", "image_size", "max_position_embeddings"):
            assert own.get(name) == theirs[section].get(name)

    import_huggingface(tmp_path / "out", tmp_path / "again")
    again, params = load_model(tmp_path / "again")
    assert again.config == family.trained.config.model
    jax.tree.map(np.testing.assert_array_equal, params, family.trained.params)


def test_the_command_gives_probabilities_of_the_logits_and_int8_is_close(tmp_path, capsys):
    family = imported("vit_and_bert")
    np.savez(tmp_path / "pictures.npz", images=family.outputs["images"])
    (tmp_path / "labels.txt").write_text("the house\nthe old house is red\na cat\n")
    words = ["--images", str(tmp_path / "pictures.npz"), "--texts", str(tmp_path / "labels.txt")]
    assert main(["classify", "--workdir", str(family.workdir), *words]) == 0

    logits = family.outputs["logits"][:, [0, 1, 3]]
    labels = np.array(TEXTS)[[0, 1, 3]]
    assert capsys.readouterr().out.splitlines() == labels[logits.argmax(axis=1)].tolist()

    matcher = ImageTextMatcher.load(family.workdir)
    expected = matcher.similarity(family.outputs["images"], TEXTS)
    scale = np.exp(family.trained.params["log_scale"])
    np.testing.assert_allclose(scale * expected, family.outputs["logits"], atol=1e-4)

    quantize(family.workdir, tmp_path / "int8")
    found = ImageTextMatcher.load(tmp_path / "int8").similarity(family.outputs["images"], TEXTS)
    np.testing.assert_allclose(found, expected, atol=0.05)


@pytest.mark.parametrize(
    ("section", "fields", "message"),
    [
        ("vision_config", {"pooler_act": "relu"}, "vision_config.pooler_act to be 'tanh'"),
        ("vision_config", {"pooler_output_size": 5}, "pooler_output_size to be 12: got 5"),
        ("vision_config", {"model_type": "swin"}, "vision_config"),
        ("text_config", {"model_type": "roberta"}, "text_config"),
        ("text_config", {"is_decoder": True}, "text_config.is_decoder to be False"),
    ],
)
def test_other_parts_are_refused_by_name(section, fields, message, tmp_path):
    folder = write_model("vit_and_bert", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config[section] |= fields
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=message):
        import_huggingface(folder, tmp_path / "run")


@pytest.mark.ci
def test_it_begins_with_an_import_resumes_exactly_and_is_the_same_on_a_mesh(tmp_path):
    family = imported("vit_and_bert")
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
    texts = [TEXTS[number % 2] for number in range(40)]
    np.savez(tmp_path / "pairs.npz", images=images, texts=texts)

    pairs = str(tmp_path / "pairs.npz")
    config = Config(
        model=family.trained.config.model,
        data=ImageTextConfig(train=pairs, valid=pairs, rows=16),
        training=TrainingConfig(
            init_from=str(family.workdir),
            steps=6,
            warmup_steps=2,
            label_smoothing=0.0,
            checkpoint_every=3,
            eval_every=6,
            log_every=3,
        ),
    )
    train(config, tmp_path / "whole")
    check_resumed(config, tmp_path / "whole", tmp_path, cut=4)
    check_other_mesh(config, tmp_path / "whole", tmp_path)
