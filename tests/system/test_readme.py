"""Runs the commands and the code of README.md and docs/tutorial.md in order."""

import io
import pathlib
import re
import runpy
import shlex
import sys

import jax
import numpy as np
import pytest

from jaxformer.cli import main

PROJECT = pathlib.Path(__file__).parents[2]
# Fewer steps.
SHORTER = {
    "train numerals ": "train numerals:smoke ",
    'load_config("numerals")': 'load_config("numerals:smoke", SMALL)',
    "steps=1000, warmup_steps=400, checkpoint_every=500, eval_every=500": "steps=2",
}
SMALL = [
    *("--config.model.d_model=32", "--config.model.d_ff=64", "--config.training.eval_sentences=2"),
    "--config.search.max_extra_length=8",
]
# These tests run in a complete environment.
NOT_RUN = ("make ", "pip install ")
OWN_TEXT = [
    *("--config.training.steps=2", "--config.model.vocab_size=320"),
    "--config.data.batching=packing",
]


def blocks(page, kinds="console|python"):
    """Returns the kind and the text of each block, by default those that are run, in order."""
    text = (PROJECT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```({kinds})\n(.*?)```$", text, flags=re.DOTALL | re.MULTILINE)


def lines(block):
    """Returns the commands of a console block, without comments."""
    return re.sub(r" +# .*", "", block.replace("\\\n", "")).strip().split("\n")


def test_the_chinese_readme_has_the_same_commands_and_code():
    """Up to comments."""

    def without_comments(page):
        # The commands of sh need a corpus, so test_pages.py reads them and no test runs them.
        found = blocks(page, "console|python|sh")
        return [(kind, re.sub(r" +# .*", "", block)) for kind, block in found]

    assert without_comments("docs/README.zh-CN.md") == without_comments("README.md")
    assert len(without_comments("README.md")) == 6


def test_the_own_task_of_the_readme_learns(tmp_path, monkeypatch):
    """Its code needs no other command; test_blocks_run runs all blocks."""
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    exec(compile(blocks("README.md")[-1][1], "README.md", "exec"), names)
    source = np.random.default_rng(300).integers(3, 16, (32, 8), np.int32)  # a new batch
    loss = jax.jit(lambda params, batch: names["Reverse"]().loss(params, batch, None))
    sums = loss(names["state"].params, {"source": source, "target": source[:, ::-1]})
    assert sums["loss"] / sums["count"] < 0.2  # 2.6, the logarithm of 13, for a guess


def run(command, patch):
    """Runs a line of a shell in this process: `echo TEXT |` before, `< FILE`, `> FILE` after."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words, given, output = list(lexer), b"", None
    if words[0] == "echo":
        assert words[2] == "|"
        given, words = f"{words[1]}\n".encode(), words[3:]
    while words[-2] in ("<", ">"):
        *words, sign, file = words
        if sign == "<":
            given = pathlib.Path(file).read_bytes()
        else:
            output = open(file, "w", encoding="utf-8")  # noqa: SIM115
    with patch.context() as streams, output or io.StringIO() as written:
        streams.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given), "utf-8"))
        streams.setattr(sys, "stdout", written)
        match words:
            case ["jaxformer", *rest] | ["python", "train.py", *rest]:
                assert main(rest if words[0] == "jaxformer" else ["train", *rest]) == 0, command
            case ["python", "-m", module, *rest]:
                streams.setattr(sys, "argv", [module, *rest])
                runpy.run_module(module, run_name="__main__")
            case _:
                raise AssertionError(f"not a command of ours: {command}")


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.ci
@pytest.mark.timeout(1800)
def test_blocks_run(tmp_path, monkeypatch):
    """Runs both pages in one folder, with few training steps and small texts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my").mkdir()
    for split in ("train", "valid"):
        for language in ("en", "de"):
            text = "".join(f"{language} sentence {n} of many, {n * n} in all\n" for n in range(300))
            (tmp_path / "my" / f"{split}.{language}").write_text(text, encoding="utf-8")
    (tmp_path / "runs").mkdir()
    (tmp_path / "configs").symlink_to(PROJECT / "configs")
    ran = []
    for kind, block in [*blocks("README.md"), *blocks("docs/tutorial.md")]:
        for long, short in SHORTER.items():
            block = block.replace(long, short)
        if kind == "python":
            pathlib.Path("small.py").write_text(block, encoding="utf-8")
            exec(compile(block, "small.py", "exec"), {"__name__": "page", "SMALL": SMALL})
            continue
        for command in lines(block):
            # The run with one head differs from the others in a flag, which test_pages.py reads.
            if command.startswith(NOT_RUN) or "one_head" in command or command in ran:
                continue
            ran.append(command)
            if "train" in command.split("--")[0]:
                command = " ".join([command, *SMALL, *OWN_TEXT * ("base" in command)])
            run(command, monkeypatch)
            if "held_out" in command and "-m" in command:
                for file in (tmp_path / "runs").glob("held_out.*"):
                    few = file.read_text(encoding="utf-8").splitlines(keepends=True)[:4]
                    file.write_text("".join(few), encoding="utf-8")
    assert len(ran) == 13
