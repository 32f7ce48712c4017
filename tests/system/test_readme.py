"""Runs the README's commands in order."""

import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

PROJECT = pathlib.Path(__file__).parents[2]


def commands():
    """Returns every command of the README's console blocks."""
    text = (PROJECT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```console\n(.*?)```", text, flags=re.DOTALL)
    return [line for block in blocks for line in block.replace("\\\n", "").strip().split("\n")]


def test_make_targets_exist():
    targets = [command.split()[1] for command in commands() if command.startswith("make ")]
    assert {"demo", "test"} <= set(targets)
    for target in targets:
        subprocess.run(["make", "--dry-run", target], cwd=PROJECT, check=True, capture_output=True)


@pytest.mark.slow
def test_commands_run(tmp_path):
    """Runs all other commands, with few training steps and a text of four lines."""
    for part in ("train", "valid"):
        (tmp_path / "my").mkdir(exist_ok=True)
        for language in ("en", "de"):
            lines = [f"{language} sentence {n} of many, {n * n} in all\n" for n in range(3000)]
            (tmp_path / "my" / f"{part}.{language}").write_text("".join(lines), encoding="utf-8")
    for name in ("configs", "train.py"):
        (tmp_path / name).symlink_to(PROJECT / name)
    (tmp_path / "runs").mkdir()
    path = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "XLA_FLAGS": "", "PYTHONPATH": str(PROJECT)}
    ran = 0
    for command in commands():
        if command.startswith(("make ", "pip ")):
            continue
        command = command.replace("numerals.py", "numerals.py:smoke").replace(
            "--last 3", "--last 2"
        )
        if "base.py:tiny" in command:
            command += " --config.training.steps=2 --config.training.eval_sentences=2"
            command += " --config.model.vocab_size=320 --config.data.batching=packing"
        result = subprocess.run(
            shlex.join(["bash", "-c", command]),
            shell=True,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, f"{command}\n{result.stderr}"
        ran += 1
    assert ran >= 7
