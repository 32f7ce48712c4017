"""Sizes of a language model that follow from its text, and are possible for any text."""

import math
import pathlib

import numpy as np
import pytest

from jaxformer.cli import main
from jaxformer.cli.config_file import load_config
from jaxformer.errors import UserError
from jaxformer.experiment import make_task
from jaxformer.runs.workdir import Workdir

WORDS = ["Zug", "fährt", "nach", "Köln", "und", "hält", "dort", "犬"]
VERSES = np.random.default_rng(0).choice(WORDS, (200, 6)).tolist()
TEXTS = {
    "200 lines": "".join(f"{' '.join(words)}\n" for words in VERSES),
    "100 characters": "abc\n" * 25,
    "one character": "a" * 100,
    "no spaces, one line": "犬猫鳥魚" * 300,
    "rare characters": "a b " * 100 + "".join(map(chr, range(0x4E00, 0x4F00))),
    "blank lines": "\n\n\n  \n" * 20 + "word\n" * 20,
}


def small(*words, config="gpt:small"):
    overrides = [f"--config.{word}" for word in ("data.file=text.txt", *words)]
    return load_config(config, overrides)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Returns an empty working directory."""
    monkeypatch.setenv("JAXFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("tokens", ["characters", "bpe"])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_chosen_sizes_fit_any_text(text, tokens, folder, capsys):
    pathlib.Path("text.txt").write_text(text, encoding="utf-8")

    config = small(f"data.tokens={tokens}")
    task = make_task(config, Workdir(folder / "run"))

    assert task.tokenizer.vocab_size == config.model.vocab_size
    if tokens == "characters":
        assert config.model.vocab_size == 4 + len(set(text))

    training = config.training
    assert 0 < training.warmup_steps < training.steps <= 1000
    assert training.eval_every <= training.steps
    assert training.checkpoint_every == training.eval_every

    log = capsys.readouterr().err
    assert f"\n  model.vocab_size={config.model.vocab_size}: " in log
    assert f"\n  data.length={config.data.length}: " in log


def test_a_longer_text_has_more_steps_up_to_a_limit():
    lines = TEXTS["200 lines"]
    steps = []
    for count in (1, 20, 300):
        pathlib.Path("text.txt").write_text(lines * count, encoding="utf-8")
        steps.append(small().training.steps)

    # 15 epochs of nine tenths of the text, in batches of 32 rows of 128 characters.
    characters = len(lines) * 20 * 9 // 10
    expected = math.ceil(15 * characters / (32 * 128))
    assert steps == [200, expected, 1000]


def test_documents_and_validation_files_have_their_characters(folder):
    pathlib.Path("text.txt").write_text("ab\n---\n" * 50)
    pathlib.Path("valid.txt").write_text("cd\n---\n" * 50)
    words = ("data.separator=---", "data.valid=valid.txt")

    config = small(*words)
    assert config.model.vocab_size == 4 + len(set("abcd\n"))
    make_task(config, Workdir(folder / "run"))

    other = small(*words, config="shakespeare:smoke")
    assert other.model.vocab_size == config.model.vocab_size
    assert other.training.steps == 4  # Only the vocabulary of this config is chosen.


def test_the_command_trains_it_and_names_the_next_one(folder, monkeypatch, capsys):
    """Without the training itself, which other tests have."""
    pathlib.Path("text.txt").write_text("abc\n" * 25)
    workdir = folder / "my run"
    configs = []
    monkeypatch.setattr("jaxformer.experiment.train", lambda config, _: configs.append(config))

    words = ["gpt:small", "--workdir", str(workdir), "--config.data.file=text.txt"]
    assert main(["train", *words]) == 0

    assert configs == [small()]
    done = f"done; generate with jaxformer generate --workdir '{workdir}'\n"
    assert done in capsys.readouterr().err


def test_given_fields_keep_their_values():
    pathlib.Path("text.txt").write_text(TEXTS["200 lines"], encoding="utf-8")

    config = small(
        "data.length=7",
        "data.tokens=bpe",
        "training.steps=50",
        "training.eval_every=9",
        "training.checkpoint_every=3",
    )
    assert config.data.length == 7
    assert config.training.steps == 50
    assert config.training.warmup_steps == 10
    assert config.training.eval_every == 9
    assert config.training.checkpoint_every == 3

    other = small("model.vocab_size=300", "data.tokens=bpe")
    assert other.model.vocab_size == 300


def test_a_share_of_the_end_is_for_validation(folder):
    pathlib.Path("text.txt").write_text("ab" * 500)

    identities = set()
    for share, count in (("25%", 250), ("0.5 %", 5), ("0.001%", 1), ("", 100)):
        task = make_task(small(f"data.valid={share}"), Workdir(folder / "run"))
        identities.add(str(task.identity()))
        assert f"{1000 - count:,} training tokens, {count} validation tokens" in task.summary()

    assert len(identities) == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["data.file="], r"data\.file: expected your own text, got none; give --config"),
        (["data.valid=0.05"], r"data\.valid: expected a share .*; give --config\.data\.valid=5%"),
        (["data.valid=0%"], r"data\.valid: expected a share .* above 0% and below 100%"),
        (["data.file=text.tx"], r"data\.file: text\.tx: no such file.*; did you mean text\.txt\?"),
        (["data.train=my.txt"], r"unknown config field data\.train; did you mean data\.file\?"),
    ],
)
def test_mistakes_are_explained(words, message):
    pathlib.Path("text.txt").write_text("abc\n" * 25)
    with pytest.raises(UserError, match=message):
        small(*words)
