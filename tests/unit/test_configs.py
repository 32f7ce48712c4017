"""Shipped configs are valid, document their command, and match the paper where they say so."""

import dataclasses
import pathlib
import runpy
import shlex

import pytest

from jaxformer.cli import main
from jaxformer.cli.arguments import known_commands
from jaxformer.config import Config
from jaxformer.errors import UserError
from jaxformer.kinds.classification import MASKED_LANGUAGE_MODELING
from jaxformer.kinds.selection import known_kinds
from jaxformer.kinds.speech_recognition import SPEECH_PRETRAINING

CONFIGS = pathlib.Path(__file__).parents[2] / "configs"


def load(name, variant=""):
    module = runpy.run_path(str(CONFIGS / f"{name}.py"))
    return Config.from_dict(module["get_config"](variant).to_dict())


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.py")), ids=lambda path: path.stem)
def test_config_is_valid_and_documented(path):
    load(path.stem)

    document = runpy.run_path(str(path))["__doc__"]
    assert f"python train.py --config=configs/{path.name} --workdir=runs/{path.stem}" in document
    assert "Measured: " in document

    with pytest.raises(UserError, match="unknown variant 'nosuch'"):
        load(path.stem, "nosuch")


@pytest.mark.parametrize("name", ["base:small", "student:firefox"])
def test_configs_for_own_data_ask_for_it(name, tmp_path, monkeypatch, capsys):
    """Even if there are files with the names of the documentation."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my").mkdir()
    for file in ("my/train.en", "my/train.de", "train.en", "train.pt", "valid.en", "valid.pt"):
        (tmp_path / file).write_text("a\n" * 20)

    assert main(["train", name, "--workdir", str(tmp_path / "run")]) == 2

    assert capsys.readouterr().err.startswith(
        "error: data.train: expected your own training text, got none; give "
        "--config.data.train=my/train for the files my/train.en and my/train."
    )


def test_base_and_big_are_the_papers():
    paper = Config()
    base = load("base")
    big = load("big")

    assert base.training == paper.training
    assert base.search == paper.search
    assert base.data == big.data
    on_tfds = dataclasses.replace(base.data, corpus="tfds", train="train", valid="validation")
    assert on_tfds == paper.data

    assert base.model.num_layers == 6
    assert base.model.d_model == 512
    assert base.model.d_ff == 2048
    assert base.training.steps == 100_000
    assert base.training.warmup_steps == 4000
    assert base.training.keep_checkpoints == 5

    assert big.model.d_model == 1024
    assert big.model.d_ff == 4096
    assert big.model.num_heads == 16
    assert big.model.dropout_rate == 0.3
    assert big.training.steps == 300_000
    assert big.training.keep_checkpoints == 20


def test_parsing_config():
    """Section 6.3: 4 layers, d_model 1024, 16K tokens, beam 21, alpha 0.3, input length + 300."""
    model = load("parsing").model
    assert model.num_layers == 4
    assert model.d_model == 1024
    assert model.vocab_size == 16_000

    # "All other parameters remained unchanged from the ... base model".
    base = Config().model
    assert model.d_ff == base.d_ff
    assert model.num_heads == base.num_heads


@pytest.mark.parametrize("variant", ["", "small"])
def test_data_and_search_of_the_parsing_configs(variant):
    config = load("parsing", variant)
    assert config.data.corpus == "trees"
    assert config.search.beam_size == 21
    assert config.search.length_penalty == 0.3
    assert config.search.max_extra_length == 300


def test_the_end_of_a_run_names_a_command_for_its_model():
    for kind in known_kinds():
        words = shlex.split(kind.use.format(workdir="runs/mine"))
        if kind in (MASKED_LANGUAGE_MODELING, SPEECH_PRETRAINING):
            assert words[-1] == "--config.training.init_from=runs/mine"
            continue

        program, command, *options = words[words.index("jaxformer") :]
        assert command in known_commands()
        assert options[-2:] == ["--workdir", "runs/mine"]
        assert f"{program} {command}" in kind.commands
