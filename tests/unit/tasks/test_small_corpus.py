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


def write(pairs):
    for name, side in (("en", 0), ("de", 1)):
        pathlib.Path(f"text.{name}").write_text("".join(f"{pair[side]}\n" for pair in pairs))
    pathlib.Path("tsv").write_text("".join(f"{en}\t{de}\n" for en, de in pairs))
    rows = ({"translation": {"en": en, "de": de}} for en, de in pairs)
    pathlib.Path("jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def small(*words, corpus="text"):
    overrides = [f"--config.{word}" for word in words]
    return load_config(
        "base:small",
        [f"--config.data.corpus={corpus}", f"--config.data.train={corpus}", *overrides],
    )


@pytest.mark.parametrize("count", [3, 60, 4000])
def test_chosen_sizes_fit_the_text(count, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    numbers = np.random.default_rng(0).permutation(100_000)[:count].tolist()
    write([(spell_english(n), spell_german(n)) for n in numbers])
    config = small("data.valid=50%")
    for corpus in ("tsv", "jsonl"):
        other = small("data.valid=50%", corpus=corpus)
        assert (other.model, other.training) == (config.model, config.training)
    data, training = config.data, config.training
    assert 0 < training.warmup_steps < training.steps <= 4000
    assert training.eval_every == training.checkpoint_every <= training.steps
    corpus = hold_out(open_corpus(data), data.train, data.valid)
    tokenizer = cached_tokenizer(corpus, data.train, config.model.vocab_size, tmp_path)
    assert tokenizer.vocab_size == config.model.vocab_size
    lengths = [len(tokenizer.encode(text)) + 1 for pair in corpus.pairs("text") for text in pair]
    epochs = training.steps * data.tokens_per_batch / (sum(lengths) / 2)
    assert epochs == pytest.approx(30, rel=0.05) or count < 4000
    log = capsys.readouterr().err
    for name in ("model.vocab_size", "training.steps", "training.warmup_steps"):
        section, field = name.split(".")
        assert f"\n  {name}={getattr(getattr(config, section), field)}: " in log


def test_given_fields_keep_their_values_and_others_follow(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write([(spell_english(n), spell_german(n)) for n in range(60)])
    every = ("training.eval_every=9", "training.checkpoint_every=3")
    config = small("training.steps=200", "model.vocab_size=300", *every)
    assert (config.training.steps, config.training.warmup_steps) == (200, 10)
    assert (config.training.eval_every, config.training.checkpoint_every) == (9, 3)
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
    write([(f"{spell_english(n)} {n}", spell_german(n)) for n in range(10_000, 10_900)])
    words = ("model.vocab_size=1300", "training.steps=20", "training.warmup_steps=20")
    fixed = [f"--config.{word}" for word in ("data.corpus=text", "data.train=text", *words)]
    folder = Workdir(tmp_path / "run")
    config = load_config("base:tiny", [*fixed, "--config.data.valid=10%"])
    check_experiment(config, folder)
    make_task(config, folder)
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("note: training.warmup_steps=20 is not less than training.steps=20: ")
    assert second == "note: model.vocab_size=1300 is large for this text; 600 or so is usual"
    check_experiment(small(), folder)
    make_task(small(), folder)
    assert "note: " not in capsys.readouterr().err
