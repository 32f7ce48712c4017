"""The scripts of benchmarks/: what they print, and what the docs quote of them."""

import inspect
import json
import pathlib
import runpy
import subprocess
import sys

import pytest

PROJECT = pathlib.Path(__file__).parents[3]


def run(script, *arguments):
    command = [sys.executable, PROJECT / "benchmarks" / script, *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def check(figures):
    assert 0 < figures["min"] <= figures["median"] <= figures["max"]


@pytest.mark.nightly
def test_decode_prints_a_json_line_for_every_system_and_setting():
    systems = ("ours float32", "ours bfloat16")
    finished = run("decode.py", "--quick", "--systems", *systems, "--beam=2", "--batch", "8", "1")
    assert finished.returncode == 0, finished.stderr
    lines = [json.loads(line) for line in finished.stdout.splitlines()]
    assert [(line["system"], line["beam"], line["batch"]) for line in lines] == [
        (system, 2, batch) for batch in (8, 1) for system in systems
    ]
    for line in lines:
        check(line["milliseconds" if line["batch"] == 1 else "tokens_per_second"])


@pytest.mark.nightly
def test_train_prints_a_json_line_for_every_system():
    finished = run("train.py", "--size", "tiny", "--steps", "2")
    assert finished.returncode == 0, finished.stderr
    lines = [json.loads(line) for line in finished.stdout.splitlines()]
    assert [line["system"] for line in lines] == ["ours float32", "ours bfloat16"]
    for line in lines:
        check(line["tokens_per_second"])
        assert 0 <= line["mfu"] < 1  # rounded
        assert line["flops_per_second"] > 0
        assert line["padding_efficiency"] == line["compilations"] == 1


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        ("decode.py", ["--systems", "ctranslate2 int8"], "these --systems need --peers"),
        ("train.py", ["--systems", "torch bfloat16"], "these --systems need --peers"),
        (
            "translation_notebook.py",
            ["--train", "a", "--test", "b", "--notebook", "c.ipynb"],
            "--notebook and --peer need each other",
        ),
    ],
)
def test_peers_need_their_interpreter(script, arguments, message):
    finished = run(script, *arguments)
    assert finished.returncode == 2
    assert message in finished.stderr


def test_docs_are_up_to_date():
    table = runpy.run_path(str(PROJECT / "benchmarks" / "communication.py"))["table"]()
    assert table in (PROJECT / "docs" / "scaling.md").read_text(encoding="utf-8")
    notebook = runpy.run_path(str(PROJECT / "benchmarks" / "translation_notebook.py"))
    count = notebook["count_lines"](inspect.getsource(notebook["train_ours"]))
    page = (PROJECT / "docs" / "notebooks.md").read_text(encoding="utf-8")
    assert f"| lines of code, without blank lines and comments | 327 | {count} |" in page
