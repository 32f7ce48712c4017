"""The blocks of docs/research.md run as printed, on eight devices and on one."""

import functools
import shutil

import jax
import numpy as np
import pytest

from . import pages

SECTIONS = pages.sections("research.md")


@pytest.fixture(scope="module")
def run(learned_workdir, tmp_path_factory):
    """A function that runs a section once, beside a trained model, and returns its names."""
    folder = tmp_path_factory.mktemp("research")
    shutil.copytree(learned_workdir, folder / "runs" / "numerals")

    @functools.cache
    def run(heading):
        names = {"__name__": "research"}
        for block in SECTIONS[heading]:
            pages.run("research.md", block, names)
        return names

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield run


@pytest.mark.ci
@pytest.mark.parametrize("heading", SECTIONS)
def test_runs_as_printed(heading, run):
    assert run(heading)


@pytest.mark.ci
def test_scores_of_the_lstm_are_those_of_its_tokens_one_by_one(run):
    names = run("Beam search over an LSTM")
    result, carry = jax.device_get((names["result"], names["carry"]))
    apply = jax.jit(names["decoder"].apply)
    for sentence, beam in np.ndindex(3, 4):
        own = jax.tree.map(lambda a, n=sentence: a[n : n + 1, :1], carry)
        token, total = 2, 0.0
        for following in result.tokens[sentence, beam, : result.lengths[sentence, beam]]:
            logits, own = apply(names["params"], np.array([[token]]), own)
            total += float(jax.nn.log_softmax(logits[0, 0])[following])
            token = following
        assert total == pytest.approx(result.log_probs[sentence, beam], rel=1e-4)
