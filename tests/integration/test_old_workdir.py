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
VERSIONS = {
    "workdir_8c81d1e": 1200,
    "workdir_0_2_0": 900,
    "workdir_0_3_0": 900,
}


def versions(ordinary):
    return pytest.mark.parametrize("version", by_profile([ordinary], nightly=VERSIONS))


def lines_of(path):
    return path.read_text(encoding="utf-8").splitlines()


def translate(fixture, output, *options):
    run = fixture / "run"
    source = fixture / "source.en"
    files = ["--input", str(source), "--output", str(output)]
    assert main(["translate", "--workdir", str(run), *files, *options]) == 0
    return lines_of(output)


@versions("workdir_0_2_0")
def test_greedy_translations_are_the_same(version, tmp_path):
    fixture = FIXTURES / version
    found = translate(fixture, tmp_path / "greedy.de", "--beam-size", "1")
    assert found == lines_of(fixture / "greedy.de")


def test_everything_works_inside_a_global_mesh(tmp_path):
    """Programs have their own mesh or none, and loaded parameters fit into the user's."""
    fixture = FIXTURES / "workdir_0_2_0"
    run = shutil.copytree(fixture / "run", tmp_path / "run")
    tokens = np.array([[5, 6, 1]] * 8, np.int32)
    model, params = load_model(run)

    @jax.jit
    def encode(params, tokens):
        return model.apply({"params": params}, tokens, method="encode")

    expected = encode(params, tokens)

    mesh = jax.make_mesh((8,), ("rows",))
    with jax.set_mesh(mesh):
        found = translate(fixture, tmp_path / "greedy.de", "--beam-size", "1")
        assert main(["average", "--workdir", str(run), "--last", "1"]) == 0
        quantize(run, tmp_path / "int8")

        sharding = NamedSharding(mesh, PartitionSpec("rows"))
        by_rows = jax.device_put(tokens, sharding)
        _, averaged = load_model(run)
        np.testing.assert_allclose(encode(averaged, by_rows), expected, rtol=1e-5, atol=1e-5)

        int8, quantized = load_model(tmp_path / "int8")
        encode_int8 = functools.partial(int8.apply, method="encode")
        jax.eval_shape(encode_int8, {"params": quantized}, by_rows)

    assert found == lines_of(fixture / "greedy.de")


@pytest.mark.smoke
@versions("workdir_8c81d1e")
def test_beams_have_the_same_tokens_and_scores(version, tmp_path):
    fixture = FIXTURES / version
    options = ["--beam-size", "4", "--n-best", "2", "--json"]
    found = translate(fixture, tmp_path / "beam.jsonl", *options)
    expected = lines_of(fixture / "beam.jsonl")

    rows = map(json.loads, found)
    expected_rows = map(json.loads, expected)
    for ours, theirs in zip(rows, expected_rows, strict=True):
        assert ours["source"] == theirs["source"]
        for a, b in zip(ours["hypotheses"], theirs["hypotheses"], strict=True):
            assert a["text"] == b["text"]
            assert a["tokens"] == b["tokens"]
            np.testing.assert_allclose(a["score"], b["score"], rtol=1e-5)
            np.testing.assert_allclose(a["log_prob"], b["log_prob"], rtol=1e-5)


@pytest.mark.ci
@versions("workdir_0_2_0")
def test_training_resumes_with_the_same_losses(version, tmp_path):
    """Adam's moments, random numbers and batches continue as in the old version.

    ``resumed.json`` has the losses of six steps and of a validation that the old version reported.
    """
    fixture = FIXTURES / version
    run = shutil.copytree(fixture / "run", tmp_path / "run")
    step = VERSIONS[version]
    last = step + 6
    training = {
        "steps": last,
        "log_every": 1,
        "eval_every": last,
        "eval_sentences": 0,
        "checkpoint_every": last,
    }
    config = changed(read_config(Workdir(run)), training=training)

    state = train(config, run)

    assert int(state.step) == last
    losses = [report["loss"] for report in reports(run) if report["step"] > step]
    expected = json.loads((fixture / "resumed.json").read_bytes())
    np.testing.assert_allclose(losses, expected, rtol=2e-6)
