"""Runs the commands and the code of README.md and docs/tutorial.md in order."""

import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

PROJECT = pathlib.Path(__file__).parents[2]
# Fewer steps, and fewer checkpoints to average.
SHORTER = {
    "numerals.py ": "numerals.py:smoke ",
    "train numerals ": "train numerals:smoke ",
    'load_config("numerals")': 'load_config("numerals:smoke")',
    "--last 3": "--last 2",
    "steps=1000, warmup_steps=400, checkpoint_every=500, eval_every=500": "steps=2",
}


def blocks(page):
    """Returns the kind and the text of each block that is run, in order."""
    text = (PROJECT / page).read_text(encoding="utf-8")
    return re.findall(r"^```(console|python)\n(.*?)```$", text, flags=re.DOTALL | re.MULTILINE)


def commands(page):
    """Returns every command of the page's console blocks."""
    return [line for kind, block in blocks(page) if kind == "console" for line in lines(block)]


def lines(block):
    """Returns the commands of a console block, without comments."""
    return re.sub(r" +# .*", "", block.replace("\\\n", "")).strip().split("\n")


def test_make_targets_exist():
    targets = [command.split()[1] for command in commands("README.md") if "make " in command]
    assert {"demo", "test"} <= set(targets)
    for target in targets:
        subprocess.run(["make", "--dry-run", target], cwd=PROJECT, check=True, capture_output=True)


def test_the_chinese_readme_has_the_same_commands_and_code():
    """Up to comments."""

    def without_comments(page):
        return [(kind, re.sub(r" +# .*", "", block)) for kind, block in blocks(page)]

    assert without_comments("docs/README.zh-CN.md") == without_comments("README.md")
    assert len(blocks("README.md")) == 6


@pytest.fixture
def folder(tmp_path):
    """A folder with a corpus of one's own and an empty run folder."""
    (tmp_path / "my").mkdir()
    for part in ("train", "valid"):
        for language in ("en", "de"):
            lines = [f"{language} sentence {n} of many, {n * n} in all\n" for n in range(3000)]
            (tmp_path / "my" / f"{part}.{language}").write_text("".join(lines), encoding="utf-8")
    (tmp_path / "runs").mkdir()
    return tmp_path


def run(folder, command):
    path = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "XLA_FLAGS": "", "PYTHONPATH": str(PROJECT)}
    result = subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, f"{command}\n{result.stderr}"


@pytest.mark.ci
@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_blocks_run(page, folder):
    """Runs all other commands and code, with few training steps and a small text.

    The tutorial's commands that are the README's, too, run once.
    """
    known = [] if page == "README.md" else commands("README.md")
    if page == "README.md":
        for name in ("configs", "train.py"):
            (folder / name).symlink_to(PROJECT / name)
    ran = 0
    for kind, block in blocks(page):
        for long, short in SHORTER.items():
            block = block.replace(long, short)
        if kind == "python":
            if ">>>" not in block:  # a doctest
                (folder / "small.py").write_text(block, encoding="utf-8")
                run(folder, shlex.join([sys.executable, "small.py"]))
            continue
        for command in lines(block):
            if command.startswith("make ") or command in known:
                continue
            if "base" in command:
                command += " --config.training.steps=2 --config.training.eval_sentences=2"
                command += " --config.model.vocab_size=320 --config.data.batching=packing"
            run(folder, shlex.join(["bash", "-c", command]))
            ran += 1
    assert ran >= 7
