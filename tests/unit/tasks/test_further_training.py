"""Further training: layers and languages of a model, and steps that follow from the text."""

import dataclasses
import math
import shutil

import pytest

from jaxformer import pretrained
from jaxformer.cli.config_file import load_config
from jaxformer.config import (
    Config,
    DataConfig,
    ModelConfig,
    StreamConfig,
    read_config,
    save_config,
)
from jaxformer.data.held_out import open_splits
from jaxformer.data.numerals import spell_english, spell_german
from jaxformer.data.tokenizer import Tokenizer
from jaxformer.errors import UserError
from jaxformer.experiment import check_experiment
from jaxformer.models.gpt2 import GPT2Config
from jaxformer.models.t5 import T5Config
from jaxformer.runs.workdir import Workdir
from jaxformer.tasks.dataset import open_dataset

from ...runs import write_pairs

PRETRAINED = read_config(Workdir(pretrained.WORKDIR))
TOKENIZER = Workdir(pretrained.WORKDIR).tokenizer
PAIRS = [(spell_english(n), spell_german(n)) for n in range(2000)]


@pytest.fixture(autouse=True)
def _texts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_pairs(tmp_path / "mine", PAIRS)
    write_pairs(tmp_path / "old", PAIRS[:1000])
    write_pairs(tmp_path / "valid", PAIRS[:10])


def configured(*words):
    fields = [f"--config.{word}" for word in ("data.train=mine", "data.valid=valid", *words)]
    return load_config("fine_tune", fields)


def test_layers_are_the_models_and_steps_are_ten_epochs(tmp_path, capsys):
    config = configured("model.dropout_rate=0.3")
    expected = {"dropout_rate": 0.3, "compute_dtype": "bfloat16"}
    assert config.model == dataclasses.replace(PRETRAINED.model, **expected)
    check_experiment(config, Workdir(tmp_path / "run"))

    log = capsys.readouterr().err
    assert "mine: 2,000 training pairs; hence" in log
    assert f"training.steps={config.training.steps}: 10 epochs" in log

    # The tokens of an epoch hardly depend on the batch.
    larger = configured(f"data.tokens_per_batch={4 * config.data.tokens_per_batch}")
    assert config.training.steps == pytest.approx(4 * larger.training.steps, rel=0.05)
    assert configured("training.steps=77").training.steps == 77


def test_tokens_are_counted_by_the_tokenizer_of_the_model():
    """A vocabulary of another size, learned from the text, would have fewer or more of them."""
    tokenizer = Tokenizer.load(TOKENIZER)
    encoded = [tokenizer.encode(text) for pair in PAIRS for text in pair]
    tokens = sum(len(ids) + 1 for ids in encoded) / 2

    config = configured("data.tokens_per_batch=512")
    assert config.training.steps == math.ceil(10 * tokens / 512)


def test_the_first_corpus_of_a_mixture_comes_ten_times():
    alone = configured("data.tokens_per_batch=512").training.steps
    mixed = configured("data.train=mine:5,old:10", "data.tokens_per_batch=512").training.steps
    # Two epochs of a mixture, each with five times the first and about as much of the second.
    assert mixed == pytest.approx(2 * alone, rel=0.1)


def test_batch_and_rate_follow_from_the_text(tmp_path, capsys):
    alone = configured()
    assert alone.data.tokens_per_batch == 1024
    assert alone.training.learning_rate == 1e-3

    write_pairs(tmp_path / "long", 12 * PAIRS)
    mixture = ("data.train=mine:2,long:1",)
    assert configured(*mixture).data.tokens_per_batch == 4096
    assert configured(*mixture).training.learning_rate == 2e-3
    assert "training.learning_rate=0.002: for a mixture" in capsys.readouterr().err

    assert configured(*mixture, "training.lora=8").training.learning_rate == 1e-2
    given = configured(*mixture, "training.learning_rate=3e-4", "data.tokens_per_batch=512")
    assert given.training.learning_rate == 3e-4
    assert given.data.tokens_per_batch == 512


def test_half_of_the_decoded_sentences_are_from_each_of_two_corpora(tmp_path, capsys):
    words = ("data.train=mine:5,old:1", "data.valid=20%", "training.eval_sentences=101")
    data = open_dataset(configured(*words), Workdir(tmp_path / "run"))
    assert data.valid_origins == 51 * ["mine"] + 51 * ["old"]

    corpus = open_splits(configured("data.train=old", "data.valid=20%").data)
    held_out = list(corpus.pairs("20%"))
    assert data.valid_text[51:] == held_out[:51]

    # A corpus that is too small for the share is named.
    capsys.readouterr()
    write_pairs(tmp_path / "few", PAIRS[:3])
    words = ("data.train=few:5, old:1", "data.valid=1%")
    data = open_dataset(configured(*words), Workdir(tmp_path / "run"))
    assert set(data.valid_origins) == {"old"}
    assert "note: few has no pair in data.valid=1%, and so no score" in capsys.readouterr().err

    # A validation text of its own is one corpus.
    data = open_dataset(configured("training.eval_sentences=4"), Workdir(tmp_path / "run"))
    assert data.valid_text == PAIRS[:4]
    assert set(data.valid_origins) == {"valid"}


def test_languages_and_lengths_are_the_models(tmp_path, capsys):
    workdir = Workdir(tmp_path / "model")
    workdir.path.mkdir()
    data = DataConfig(source_language="de", target_language="en", max_length=20)
    model = ModelConfig(vocab_size=300, d_model=8, d_ff=16, num_heads=2, max_length=20)
    save_config(Config(model=model, data=data), workdir.config)

    words = ("training.init_from=model", "data.tokenizer=new", "model.vocab_size=300")
    config = configured(*words)
    assert config.data.languages == ("de", "en")
    assert config.data.max_length == 20
    assert "note" not in capsys.readouterr().err

    shutil.copy("mine.de", "mine.fr")
    given = configured(*words, "data.target_language=fr", "data.valid=5%")
    assert given.data.languages == ("de", "fr")
    note = "note: data.target_language=fr, but the model has learned en there"
    assert note in capsys.readouterr().err
    assert config.model == dataclasses.replace(model, compute_dtype="bfloat16")


def test_a_model_of_another_class_is_taken_and_its_fields_are_known(tmp_path):
    workdir = Workdir(tmp_path / "model")
    workdir.path.mkdir()
    model = T5Config(vocab_size=300, d_model=8, d_ff=16, num_heads=2, d_k=4)
    save_config(Config(model=model), workdir.config)

    words = ("training.init_from=model", "data.tokenizer=new", "model.vocab_size=300")
    assert configured(*words).model == dataclasses.replace(model, compute_dtype="bfloat16")
    with pytest.raises(UserError, match=r"its model has no field norm_position; leave out --con"):
        configured(*words, "model.norm_position=pre")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), r"data\.train: expected your own training text, got none"),
        (("data.train=none",), r"none\.en: no such file"),
        (("training.init_from=gone",), r"training\.init_from=gone: expected a workdir, or 'pret"),
        (("data.train=empty",), "empty: expected sentence pairs, got none"),
        (("data.train=few", "data.valid=1%"), r"none of the 3 training pairs are in this share"),
    ],
)
def test_what_is_missing_is_said(words, message, tmp_path):
    write_pairs(tmp_path / "empty", [])
    write_pairs(tmp_path / "few", PAIRS[:3])
    given = words or ("data.train=",)
    with pytest.raises(UserError, match=message):
        configured(*given)


def test_a_model_that_does_not_translate_is_refused(tmp_path):
    workdir = Workdir(tmp_path / "model")
    workdir.path.mkdir()
    data = StreamConfig(corpus="stream", file="text")
    save_config(Config(model=GPT2Config(), data=data), workdir.config)
    with pytest.raises(UserError, match="expected a model of sentence pairs, got a language model"):
        configured("training.init_from=model", "model.vocab_size=300")
