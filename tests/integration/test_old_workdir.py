"""A workdir that an earlier version has trained: it translates as it did then, from now on.

The fixture was trained and translated by commit 8c81d1e: number words, 1,200 steps, one layer.
"""

import json
import pathlib

import numpy as np
import pytest

from jaxformer.cli import main

FIXTURE = pathlib.Path(__file__).parents[1] / "fixtures" / "workdir_8c81d1e"


def translate(output, *options):
    arguments = ["translate", "--workdir", FIXTURE / "run", "--input", FIXTURE / "source.en"]
    assert main([*map(str, arguments), "--output", str(output), *options]) == 0
    return output.read_text(encoding="utf-8").splitlines()


def test_greedy_translations_are_the_same(tmp_path):
    found = translate(tmp_path / "greedy.de", "--beam-size", "1")
    assert found == (FIXTURE / "greedy.de").read_text(encoding="utf-8").splitlines()


@pytest.mark.smoke
def test_beams_are_the_same_tokens_with_the_same_scores(tmp_path):
    found = translate(tmp_path / "beam.jsonl", "--beam-size", "4", "--n-best", "2", "--json")
    expected = (FIXTURE / "beam.jsonl").read_text(encoding="utf-8").splitlines()
    for ours, theirs in zip(map(json.loads, found), map(json.loads, expected), strict=True):
        assert ours["source"] == theirs["source"]
        for a, b in zip(ours["hypotheses"], theirs["hypotheses"], strict=True):
            assert (a["text"], a["tokens"]) == (b["text"], b["tokens"])
            np.testing.assert_allclose(
                (a["score"], a["log_prob"]), (b["score"], b["log_prob"]), rtol=1e-5
            )
