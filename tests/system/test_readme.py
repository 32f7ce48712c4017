"""Runs the code of README.md and docs/tutorial.md, and compares README.md with its translation."""

import pathlib
import re

import jax
import numpy as np
import pytest

PROJECT = pathlib.Path(__file__).parents[2]
# Fewer steps.
SHORTER = {'load_config("numerals")': 'load_config("numerals:smoke", SMALL)'}
SMALL = [
    "--config.model.d_model=32",
    "--config.model.d_ff=64",
    "--config.training.eval_sentences=2",
    "--config.search.max_extra_length=8",
]


def blocks(page, kinds):
    """Returns the kind and the text of each block of these kinds, in order."""
    text = (PROJECT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```({kinds})\n(.*?)```$", text, flags=re.DOTALL | re.MULTILINE)


def test_the_chinese_readme_has_the_same_commands_and_code():
    """Up to comments."""

    def without_comments(page):
        found = blocks(page, "console|python|sh")
        return [(kind, re.sub(r" +# .*", "", block)) for kind, block in found]

    assert without_comments("docs/README.zh-CN.md") == without_comments("README.md")
    assert len(without_comments("README.md")) == 6


def test_the_own_task_of_the_readme_learns(tmp_path, monkeypatch):
    """Its code needs no other command; test_blocks_run runs all blocks."""
    monkeypatch.chdir(tmp_path)
    *_, (_, code) = blocks("README.md", "python")
    names = {"__name__": "page"}
    exec(compile(code, "README.md", "exec"), names)

    source = np.random.default_rng(300).integers(3, 16, (32, 8), np.int32)
    new_batch = {"source": source, "target": source[:, ::-1]}
    loss = jax.jit(lambda params, batch: names["Reverse"]().loss(params, batch, None))
    sums = loss(names["state"].params, new_batch)
    assert sums["loss"] / sums["count"] < 0.2  # 2.6, the logarithm of 13, for a guess


@pytest.mark.ci
@pytest.mark.timeout(1800)
def test_blocks_run(tmp_path, monkeypatch):
    """Runs the code of both pages in one folder, with few training steps.

    integration/test_printed_commands.py runs the commands.
    """
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page", "SMALL": SMALL}
    code = [*blocks("README.md", "python"), *blocks("docs/tutorial.md", "python")]
    assert len(code) == 4

    for _, block in code:
        for long, short in SHORTER.items():
            block = block.replace(long, short)
        exec(compile(block, "page", "exec"), names)
