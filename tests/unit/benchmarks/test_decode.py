import json
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parents[3] / "benchmarks" / "decode.py"


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True)


@pytest.mark.nightly
def test_prints_a_json_line_for_every_system_and_setting():
    finished = run(
        "--quick", "--systems", "ours float32", "ours bfloat16", "--beam", "2", "--batch", "8", "1"
    )
    assert finished.returncode == 0, finished.stderr
    lines = [json.loads(line) for line in finished.stdout.splitlines()]
    assert [(line["system"], line["beam"], line["batch"]) for line in lines] == [
        ("ours float32", 2, 8),
        ("ours bfloat16", 2, 8),
        ("ours float32", 2, 1),
        ("ours bfloat16", 2, 1),
    ]
    for line in lines:
        figures = line["milliseconds" if line["batch"] == 1 else "tokens_per_second"]
        assert 0 < figures["min"] <= figures["median"] <= figures["max"]


def test_peers_need_their_interpreter():
    finished = run("--systems", "ctranslate2 int8")
    assert finished.returncode == 2
    assert "these --systems need --peers" in finished.stderr
