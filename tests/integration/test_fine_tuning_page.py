"""The blocks of docs/fine_tuning.md run beside a trained model."""

import contextlib
import pathlib
import shutil

import jax
import numpy as np
import pytest

from jaxformer import Translator, load_model, train

from ..runs import changed, reports
from . import pages
from .test_fine_tuning import FIXTURES

pytestmark = pytest.mark.ci


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder that the page describes: prices, and a trained model."""
    folder = tmp_path_factory.mktemp("page")
    shutil.copytree(FIXTURES / "workdir_8c81d1e" / "run", folder / "runs" / "numerals")
    with contextlib.chdir(folder):
        pages.execute("fine_tuning.md", "A trained model on your own sentences")
    return folder


def test_blocks_run(folder, monkeypatch):
    """The encoder is taken, and moves by at most the learning rate in each of four steps."""
    monkeypatch.chdir(folder)

    names = pages.execute("fine_tuning.md", "A task of your own", __name__="page")
    ended = jax.device_get(names["state"].params["encoder"])

    def largest_change(before, after):
        return np.abs(after - before).max()

    _, params = load_model("runs/numerals")
    differences = jax.tree.map(largest_change, params["encoder"], ended)
    assert 0 < max(jax.tree.leaves(differences)) < 4.1e-3


@pytest.mark.nightly
def test_fine_tuning_beats_training_from_scratch_for_six_times_as_long(folder, monkeypatch):
    """On 200 prices, given a model that knows numbers."""
    monkeypatch.chdir(folder)
    source = Translator.load("runs/numerals").config
    data = {"corpus": "text", "train": "prices", "valid": "prices-valid", "tokens_per_batch": 1024}
    options = {
        "steps": 60,
        "warmup_steps": 10,
        "checkpoint_every": 60,
        "eval_every": 60,
        "schedule": "cosine",
        "eval_sentences": 100,
        # Of 0.005, 0.01, 0.02 and 0.04, the best rate for the run from scratch (2026-11-23).
        "learning_rate": 1e-2,
        "learning_rate_scale": 1.0,
    }
    longer = {"steps": 360, "warmup_steps": 60, "checkpoint_every": 360, "eval_every": 360}

    def bleu_after(name, training):
        run = pathlib.Path("runs", name)
        train(changed(source, data=data, training=training), run)
        return reports(run)[-1]["bleu"]

    tuned = bleu_after("tuned", options | {"init_from": "runs/numerals"})
    scratch = bleu_after("scratch", options | longer)
    # Losses of different tokenizers are not comparable.
    assert tuned > scratch + 5
