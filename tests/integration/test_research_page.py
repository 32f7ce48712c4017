"""The blocks of layers.md, research.md, attention.md and the pages on decoding run as printed."""

import functools
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from . import pages

# A Markov chain of three tokens.
CHAIN = jnp.array(
    [
        [0.0, 0.4, 0.6],
        [0.0, 0.9, 0.1],
        [0.0, 0.5, 0.5],
    ]
)
LOGITS = jnp.log(CHAIN)
# Sections that run by themselves, by page.
SECTIONS = [
    (page, heading) for page in ("layers.md", "research.md") for heading in pages.sections(page)
]


@pytest.fixture(scope="module")
def run(learned_workdir, tmp_path_factory):
    """A function that runs a section once, beside a trained model, and returns its names."""
    folder = tmp_path_factory.mktemp("research")
    shutil.copytree(learned_workdir, folder / "runs" / "numerals")

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        execute = functools.partial(pages.execute, __name__="research")
        yield functools.cache(execute)


@pytest.mark.ci
@pytest.mark.parametrize(("page", "heading"), SECTIONS)
def test_runs_as_printed(page, heading, run):
    assert run(page, heading)


@pytest.mark.ci
def test_scores_of_the_lstm_are_those_of_its_tokens_one_by_one(run):
    names = run("research.md", "Beam search over an LSTM")
    result, carry = jax.device_get((names["result"], names["carry"]))
    params = names["params"]
    apply = jax.jit(names["decoder"].apply)

    for sentence, beam in np.ndindex(3, 4):
        of_sentence = functools.partial(first_beam_of, sentence)
        own_carry = jax.tree.map(of_sentence, carry)
        length = result.lengths[sentence, beam]
        tokens = result.tokens[sentence, beam, :length]

        token = 2
        total = 0.0
        for following in tokens:
            logits, own_carry = apply(params, np.array([[token]]), own_carry)
            log_probs = jax.nn.log_softmax(logits[0, 0])
            total += float(log_probs[following])
            token = following

        assert total == pytest.approx(result.log_probs[sentence, beam], rel=1e-4)


def first_beam_of(sentence, array):
    """Returns the state of the first beam of a sentence: all of them begin with the same."""
    return array[sentence : sentence + 1, :1]


@pytest.mark.ci
@pytest.mark.parametrize(
    "page",
    ["attention.md", "beam_search.md", "decoding.md", "decoding_speed.md"],
)
def test_the_page_runs(page, learned_workdir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(learned_workdir, tmp_path / "runs" / "numerals")

    def step_fn(tokens, cache):
        """Stands for any step function of the reader."""
        return LOGITS[tokens], cache

    names = pages.execute(page, step_fn=step_fn, cache=())

    match page:
        case "attention.md":
            assert names["view"].cross.ndim == 4
        case "beam_search.md":
            assert names["result"].tokens.shape == (2, 4, 30)
        case "decoding_speed.md":
            assert (tmp_path / "runs" / "numerals-int8").is_dir()
