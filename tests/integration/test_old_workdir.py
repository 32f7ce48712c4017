"""Workdirs of earlier versions still give the same translations, and resume with the same losses.

Commit 8c81d1e made its fixture: number words, 1,200 steps, one layer. A later version makes its own
before it is released, in the middle of a run of 1,200 steps: ``tests/fixtures/make_workdir.py``.
"""

import functools
import json
import pathlib
import shutil

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxformer import load_model, quantize
from jaxformer.cli import main
from jaxformer.config import read_config
from jaxformer.experiment import train
from jaxformer.runs.workdir import Workdir

from ..profiles import by_profile
from ..runs import changed, reports

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures"
# Fixtures and their steps.
VERSIONS = {"workdir_8c81d1e": 1200, "workdir_0_2_0": 900}


def versions(ordinary):
    return pytest.mark.parametrize("version", by_profile([ordinary], nightly=VERSIONS))


def translate(fixture, output, *options):
    arguments = ["translate", "--workdir", fixture / "run", "--input", fixture / "source.en"]
    assert main([*map(str, arguments), "--output", str(output), *options]) == 0
    return output.read_text(encoding="utf-8").splitlines()


@versions("workdir_0_2_0")
def test_greedy_translations_are_the_same(version, tmp_path):
    fixture = FIXTURES / version
    found = translate(fixture, tmp_path / "greedy.de", "--beam-size", "1")
    assert found == (fixture / "greedy.de").read_text(encoding="utf-8").splitlines()


def test_everything_works_inside_a_global_mesh(tmp_path):
    """Programs have their own mesh or none, and loaded parameters fit into the user's."""
    fixture, tokens = FIXTURES / "workdir_0_2_0", np.array([[5, 6, 1]] * 8, np.int32)
    run = shutil.copytree(fixture / "run", tmp_path / "run")
    model, params = load_model(run)
    encode = jax.jit(lambda p, tokens: model.apply({"params": p}, tokens, method="encode"))
    expected, mesh = encode(params, tokens), jax.make_mesh((8,), ("rows",))
    with jax.set_mesh(mesh):
        found = translate(fixture, tmp_path / "greedy.de", "--beam-size", "1")
        assert main(["average", "--workdir", str(run), "--last", "1"]) == 0
        quantize(run, tmp_path / "int8")
        _, averaged = load_model(run)
        sharded = jax.device_put(tokens, NamedSharding(mesh, PartitionSpec("rows")))
        np.testing.assert_allclose(encode(averaged, sharded), expected, rtol=1e-5, atol=1e-5)
        int8, quantized = load_model(tmp_path / "int8")
        jax.eval_shape(
            functools.partial(int8.apply, method="encode"), {"params": quantized}, sharded
        )
    assert found == (fixture / "greedy.de").read_text(encoding="utf-8").splitlines()


@pytest.mark.smoke
@versions("workdir_8c81d1e")
def test_beams_have_the_same_tokens_and_scores(version, tmp_path):
    fixture = FIXTURES / version
    found = translate(
        fixture, tmp_path / "beam.jsonl", "--beam-size", "4", "--n-best", "2", "--json"
    )
    expected = (fixture / "beam.jsonl").read_text(encoding="utf-8").splitlines()
    for ours, theirs in zip(map(json.loads, found), map(json.loads, expected), strict=True):
        assert ours["source"] == theirs["source"]
        for a, b in zip(ours["hypotheses"], theirs["hypotheses"], strict=True):
            assert (a["text"], a["tokens"]) == (b["text"], b["tokens"])
            np.testing.assert_allclose(
                (a["score"], a["log_prob"]), (b["score"], b["log_prob"]), rtol=1e-5
            )


@pytest.mark.ci
@versions("workdir_0_2_0")
def test_training_resumes_with_the_same_losses(version, tmp_path):
    """Adam's moments, random numbers and batches continue as in the old version.

    ``resumed.json`` has the losses of six steps and of a validation that the old version reported.
    """
    fixture, step = FIXTURES / version, VERSIONS[version]
    run = shutil.copytree(fixture / "run", tmp_path / "run")
    config = read_config(Workdir(run))
    changes = {"steps": step + 6, "log_every": 1, "eval_every": step + 6, "eval_sentences": 0}
    config = changed(config, training=changes | {"checkpoint_every": step + 6})
    assert int(train(config, run).step) == step + 6
    losses = [report["loss"] for report in reports(run) if report["step"] > step]
    expected = json.loads((fixture / "resumed.json").read_text(encoding="utf-8"))
    np.testing.assert_allclose(losses, expected, rtol=2e-6)
