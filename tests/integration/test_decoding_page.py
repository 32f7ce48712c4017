"""The blocks of docs/decoding.md and docs/attention.md run, in order."""

import itertools
import shutil

import jax.numpy as jnp
import pytest

from . import pages

LOGITS = jnp.log(jnp.array([[0.0, 0.4, 0.6], [0.0, 0.9, 0.1], [0.0, 0.5, 0.5]]))


@pytest.mark.ci
@pytest.mark.parametrize("page", ["decoding.md", "attention.md"])
def test_the_page_runs(page, learned_workdir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(learned_workdir, tmp_path / "runs" / "numerals")
    # The page's own step function stands for any.
    names = {"step_fn": lambda tokens, cache: (LOGITS[tokens], cache), "cache": ()}
    for block in itertools.chain(*pages.sections(page).values()):
        pages.run(page, block, names)
    if page == "decoding.md":
        assert names["result"].tokens.shape == (2, 4, 30)
        assert (tmp_path / "runs" / "numerals-int8").is_dir()
    else:
        assert names["view"].cross.ndim == 4
