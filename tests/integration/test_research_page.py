"""The blocks of docs/research.md run as printed, on eight devices and on one."""

import ast
import functools
import importlib
import itertools
import os
import re
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

import jaxformer

from . import pages

SECTIONS = pages.sections("research.md")
# They use all devices that there are.
ON_DEVICES = ("A layer of your own", "A mesh of your own", "Another optimizer")


@pytest.fixture(scope="module")
def run(learned_workdir, tmp_path_factory):
    """A function that runs a section once, beside a trained model, and returns its names."""
    folder = tmp_path_factory.mktemp("research")
    shutil.copytree(learned_workdir, folder / "runs" / "numerals")

    @functools.cache
    def run(heading):
        if heading == "Export a whole beam search":
            pytest.importorskip("flatbuffers", reason="jaxformer[export] is not installed")
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


@pytest.mark.nightly
def test_runs_on_one_device():
    """In a process without the environment of the tests; it runs on eight devices above."""
    blocks = [block for heading in ON_DEVICES for block in SECTIONS[heading]]
    code = "import jax; assert jax.device_count() == 1\n" + "\n".join(blocks)
    environment = {name: os.environ[name] for name in os.environ if name != "XLA_FLAGS"}
    subprocess.run([sys.executable, "-W", "error", "-c", code], env=environment, check=True)


def test_what_blocks_import_is_public():
    """From the package, or from a package in it that has a list of its own; both list names."""
    packages = set()
    for block in itertools.chain(*SECTIONS.values()):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Import):
                assert not any(alias.name.startswith("jaxformer.") for alias in node.names)
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "jaxformer":
                assert node.attr in jaxformer.__all__
            elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("jaxformer"):
                package = importlib.import_module(str(node.module))
                packages.add(package.__name__)
                assert hasattr(package, "__path__"), f"{package.__name__} is a module"
                assert {alias.name for alias in node.names} <= set(package.__all__)
    assert packages == {"jaxformer", "jaxformer.nn"}


def test_a_language_model_takes_15_lines():
    (block,) = SECTIONS["A language model in 15 lines"]
    lines = [line for line in block.splitlines() if line.strip()]
    assert sum(not re.match("from |import |assert ", line) for line in lines) == 15


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


@pytest.mark.ci
def test_all_ways_to_read_a_workdir_give_the_same(run):
    """Ours, plain orbax, and scores: one parameter tree, one log probability."""
    ours, plain = run("Parameters of a trained model"), run("Parameters with plain orbax")
    jax.tree.map(np.testing.assert_array_equal, ours["params"], plain["state"]["params"])
    target = np.asarray(ours["ids"])  # EOS included
    log_probs = jax.nn.log_softmax(ours["logits"][0])
    (score, *_) = run("Score given translations")["scores"]
    assert score.length == len(target)
    total = float(log_probs[np.arange(len(target)), target].sum())
    assert score.log_prob == pytest.approx(total, abs=1e-4)
