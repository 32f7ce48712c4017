"""The vocabulary of a config that names a tokenizer, or a model to begin with."""

import shutil

import pytest

from jaxformer import pretrained
from jaxformer.cli.config_file import load_config
from jaxformer.config import Config, ImagesConfig, ModelConfig, save_config
from jaxformer.models.vit import ViTConfig


def save(folder, **sections):
    folder.mkdir()
    save_config(Config(**sections), folder / "config.json")


@pytest.fixture
def models(tmp_path, monkeypatch):
    """A folder with a model of 300 tokens, one of pictures, and the tokenizer of ours."""
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "small", model=ModelConfig(vocab_size=300))
    save(tmp_path / "pictures", model=ViTConfig(), data=ImagesConfig(corpus="digits"))
    shutil.copy(pretrained.WORKDIR / "tokenizer.model", tmp_path)


# `tatoeba` has 6,000 tokens, `student:firefox` begins with runs/enpt.
SIZES = {
    "tatoeba": 6000,
    "tatoeba training.init_from=pretrained": 8000,
    "tatoeba training.init_from=small": 300,
    "tatoeba data.tokenizer=small": 300,
    "tatoeba data.tokenizer=tokenizer.model": 8000,
    "tatoeba training.init_from=small data.tokenizer=pretrained": 8000,
    "tatoeba training.init_from=small data.tokenizer=new": 6000,
    "tatoeba training.init_from=small model.vocab_size=310": 310,
    # A later check refuses these, with a message about the folder.
    "tatoeba training.init_from=nowhere": 6000,
    "tatoeba training.init_from=pictures": 6000,
    "student:firefox": 32_002,
}


@pytest.mark.parametrize("call", SIZES)
def test_a_named_tokenizer_gives_the_size_of_the_vocabulary(call, models, capsys):
    name, *fields = call.split()
    config = load_config(name, [f"--config.{field}" for field in fields])

    assert config.model.vocab_size == SIZES[call]
    logged = "size of the tokenizer of" in capsys.readouterr().err
    assert logged == (SIZES[call] in (300, 8000))


def test_a_model_of_pictures_has_no_vocabulary(models):
    config = load_config("digits", ["--config.training.init_from=small"])
    assert config.data.corpus == "digits"


def test_a_run_resumes_without_the_model_that_it_began_with(models, tmp_path):
    words = ["--config.training.init_from=deleted"]
    save(tmp_path / "run", model=ModelConfig(vocab_size=310))
    assert load_config("tatoeba", words, tmp_path / "run").model.vocab_size == 310
    assert load_config("tatoeba", words, tmp_path / "new").model.vocab_size == 6000

    copied = [*words, f"--config.training.mirror={tmp_path / 'run'}"]
    assert load_config("tatoeba", copied, tmp_path / "new").model.vocab_size == 310

    # A run that learns its tokenizer keeps the size of the config, which a later check compares.
    assert load_config("tatoeba", [], tmp_path / "run").model.vocab_size == 6000


def test_a_student_takes_the_tokenizer_of_its_teacher_unless_it_names_one(models):
    found = load_config("student", tokenizer="small")
    assert found.data.tokenizer == "small"
    assert found.model.vocab_size == 300

    for field in ("data.tokenizer", "training.init_from"):
        named = load_config("student", [f"--config.{field}=pretrained"], tokenizer="small")
        assert named.data.tokenizer != "small"
        assert named.model.vocab_size == 8000
