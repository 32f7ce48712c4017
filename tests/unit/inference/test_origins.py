"""The description of a converted model: its origin, also for workdirs of earlier versions."""

import pathlib

import jax
import numpy as np
import pytest

from jaxformer.config import Config, ModelConfig, StreamConfig
from jaxformer.data.character_tokenizer import CharacterTokenizer
from jaxformer.inference.conversions import quantize, write_model
from jaxformer.inference.origins import name_folder
from jaxformer.inference.parameter_arrays import abstract_params
from jaxformer.inference.weights import TrainedModel
from jaxformer.interop.hub import describe_source
from jaxformer.runs.workdir import Workdir

SIZES = {"vocab_size": 6, "d_model": 4, "d_ff": 4, "num_heads": 1, "num_layers": 1}
CONFIG = Config(model=ModelConfig(**SIZES), data=StreamConfig(file="a"))


def written(folder, command, **metadata):
    """Returns the description of a model that a command has written with some metadata."""
    template = abstract_params(CONFIG.model, CONFIG.kind)
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), template)
    tokenizer = CharacterTokenizer.assemble("ab")

    write_model(
        Workdir(folder),
        command,
        {"tokenizer": tokenizer.sha256},
        tokenizer=tokenizer.serialized,
        config=CONFIG,
        params=params,
        **metadata,
    )
    return TrainedModel.load(folder).weights


@pytest.mark.parametrize(
    ("command", "metadata", "origin"),
    [
        ("jaxformer import", {"origin": "imported from Marian: a/b"}, "imported from Marian: a/b"),
        ("jaxformer import", {}, "imported from another system"),
        ("jaxformer quantize", {"rounded_from": "step 500"}, "quantized from step 500"),
        ("jaxformer other", {}, "step 0"),
        ("jaxformer other", {"origin": "\x1b[31m\n" + "x" * 999}, "[31m" + "x" * 196),
    ],
)
def test_a_converted_model_has_its_origin(command, metadata, origin, tmp_path):
    assert written(tmp_path / "run", command, **metadata) == origin


def test_a_quantized_model_has_the_name_and_the_origin_of_the_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(pathlib.Path("runs/a"), "jaxformer import", origin="imported from Marian: b")
    quantize("runs/a", "int8")

    expected = "quantized from runs/a, imported from Marian: b"
    assert TrainedModel.load("int8").weights == expected


@pytest.mark.parametrize(
    ("path", "name"), [("runs/a", "runs/a"), ("/home/user/runs/a", "a"), (".", "folder")]
)
def test_names_of_folders_have_no_absolute_paths(path, name, tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")
    assert name_folder(pathlib.Path(path)) == name


def test_models_of_the_hub_have_their_name():
    for folder, name in (
        ("cache/models--openai-community--gpt2/snapshots/607a", "openai-community/gpt2"),
        ("/cache/models--a--b--c/snapshots/607a", "a/b--c"),
        ("/models/gpt2", "gpt2"),
    ):
        expected = f"imported from Hugging Face: {name}"
        assert describe_source("Hugging Face", pathlib.Path(folder)) == expected
