"""A workdir trained by an earlier version still gives the same translations.

Commit 8c81d1e trained and translated the fixture: number words, 1,200 steps, one layer.
"""

import dataclasses
import json
import pathlib
import shutil

import numpy as np
import pytest

from jaxformer.cli import main
from jaxformer.config import load
from jaxformer.experiment import train

FIXTURE = pathlib.Path(__file__).parents[1] / "fixtures" / "workdir_8c81d1e"


def translate(output, *options):
    arguments = ["translate", "--workdir", FIXTURE / "run", "--input", FIXTURE / "source.en"]
    assert main([*map(str, arguments), "--output", str(output), *options]) == 0
    return output.read_text(encoding="utf-8").splitlines()


def test_greedy_translations_are_the_same(tmp_path):
    found = translate(tmp_path / "greedy.de", "--beam-size", "1")
    assert found == (FIXTURE / "greedy.de").read_text(encoding="utf-8").splitlines()


@pytest.mark.smoke
def test_beams_have_the_same_tokens_and_scores(tmp_path):
    found = translate(tmp_path / "beam.jsonl", "--beam-size", "4", "--n-best", "2", "--json")
    expected = (FIXTURE / "beam.jsonl").read_text(encoding="utf-8").splitlines()
    for ours, theirs in zip(map(json.loads, found), map(json.loads, expected), strict=True):
        assert ours["source"] == theirs["source"]
        for a, b in zip(ours["hypotheses"], theirs["hypotheses"], strict=True):
            assert (a["text"], a["tokens"]) == (b["text"], b["tokens"])
            np.testing.assert_allclose(
                (a["score"], a["log_prob"]), (b["score"], b["log_prob"]), rtol=1e-5
            )


# Losses that 8c81d1e itself reports when it resumes the run, and the validation loss after them.
LOSSES = [0.94441375, 0.95166261, 0.95622354, 0.94899850, 0.95216967, 0.93166262]
VALIDATION = 0.91888795


@pytest.mark.slow
def test_training_resumes_with_the_same_losses(tmp_path):
    """Adam's moments, random numbers and batches continue as in the old version."""
    run = shutil.copytree(FIXTURE / "run", tmp_path / "run")
    config = load(run / "config.json")
    changes = {"steps": 1206, "log_every": 1, "eval_every": 1206, "eval_sentences": 0}
    training = dataclasses.replace(config.training, **changes, checkpoint_every=1206)
    assert int(train(dataclasses.replace(config, training=training), run).step) == 1206
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    reports = [report for report in map(json.loads, lines) if report["step"] > 1200]
    losses = [report["loss"] for report in reports]
    np.testing.assert_allclose(losses, [*LOSSES, VALIDATION], rtol=2e-6)
