"""Sizes that follow from a training text: the same for every format, and possible for any text."""

import json
import pathlib

import numpy as np
import pytest

from jaxformer.cli.config_file import load_config
from jaxformer.data.bpe import cached_tokenizer
from jaxformer.data.corpus import open_corpus
from jaxformer.data.held_out import hold_out
from jaxformer.data.numerals import spell_english, spell_german
from jaxformer.errors import UserError
from jaxformer.experiment import check_experiment, make_task
from jaxformer.runs.workdir import Workdir

from ...runs import write_lines, write_pairs


def write(pairs):
    """Writes the same text in three formats."""
    write_pairs(pathlib.Path("text"), pairs)
    write_lines(pathlib.Path("tsv"), map("\t".join, pairs))

    rows = []
    for english, german in pairs:
        row = {"translation": {"en": english, "de": german}}
        rows.append(json.dumps(row))
    write_lines(pathlib.Path("jsonl"), rows)


def small(*words, corpus="text"):
    overrides = [f"--config.{word}" for word in words]
    return load_config(
        "base:small",
        [f"--config.data.corpus={corpus}", f"--config.data.train={corpus}", *overrides],
    )


@pytest.mark.parametrize("count", [3, 60, 4000])
def test_chosen_sizes_fit_the_text(count, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    numbers = rng.permutation(100_000)[:count].tolist()
    write([(spell_english(n), spell_german(n)) for n in numbers])

    config = small("data.valid=50%")
    data = config.data
    training = config.training
    for corpus in ("tsv", "jsonl"):
        other = small("data.valid=50%", corpus=corpus)
        assert other.model == config.model
        assert other.training == training

    assert 0 < training.warmup_steps < training.steps <= 4000
    assert training.eval_every <= training.steps
    assert training.checkpoint_every == training.eval_every

    corpus = hold_out(open_corpus(data), data.train, data.valid)
    tokenizer = cached_tokenizer(
        corpus,
        data.train,
        config.model.vocab_size,
        cache_directory=tmp_path,
    )
    assert tokenizer.vocab_size == config.model.vocab_size

    if count == 4000:  # The steps of smaller texts have a lower limit.
        tokens = 0
        for english, german in corpus.pairs("text"):
            tokens += len(tokenizer.encode(english)) + 1
            tokens += len(tokenizer.encode(german)) + 1
        epochs = training.steps * data.tokens_per_batch / (tokens / 2)
        assert epochs == pytest.approx(30, rel=0.05)

    log = capsys.readouterr().err
    assert f"\n  model.vocab_size={config.model.vocab_size}: " in log
    assert f"\n  training.steps={training.steps}: " in log
    assert f"\n  training.warmup_steps={training.warmup_steps}: " in log


def test_given_fields_keep_their_values_and_others_follow(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write([(spell_english(n), spell_german(n)) for n in range(60)])

    config = small(
        "training.steps=200",
        "model.vocab_size=300",
        "training.eval_every=9",
        "training.checkpoint_every=3",
    )

    assert config.training.steps == 200
    assert config.training.warmup_steps == 10
    assert config.training.eval_every == 9
    assert config.training.checkpoint_every == 3
    assert config.model.vocab_size == 300


def test_a_text_that_is_missing_or_empty_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"text\.en: no such file"):
        small()
    write([])
    with pytest.raises(UserError, match="text: expected sentence pairs, got none"):
        small()


def test_unsuitable_sizes_are_noted_once(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    numbers = range(10_000, 10_900)
    write([(f"{spell_english(n)} {n}", spell_german(n)) for n in numbers])
    folder = Workdir(tmp_path / "run")

    config = load_config(
        "base:tiny",
        [
            "--config.data.corpus=text",
            "--config.data.train=text",
            "--config.data.valid=10%",
            "--config.model.vocab_size=1300",
            "--config.training.steps=20",
            "--config.training.warmup_steps=20",
        ],
    )
    check_experiment(config, folder)
    make_task(config, folder)
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("note: training.warmup_steps=20 is not less than training.steps=20: ")
    assert second == "note: model.vocab_size=1300 is large for this text; 600 or so is usual"

    # Chosen sizes are suitable.
    check_experiment(small(), folder)
    make_task(small(), folder)
    assert "note: " not in capsys.readouterr().err
