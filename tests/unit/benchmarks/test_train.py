import json
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parents[3] / "benchmarks" / "train.py"


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True)


@pytest.mark.nightly
def test_prints_a_json_line_for_every_system():
    finished = run("--size", "tiny", "--steps", "2")
    assert finished.returncode == 0, finished.stderr
    lines = [json.loads(line) for line in finished.stdout.splitlines()]
    assert [line["system"] for line in lines] == ["ours float32", "ours bfloat16"]
    for line in lines:
        figures = line["tokens_per_second"]
        assert 0 < figures["min"] <= figures["median"] <= figures["max"]
        assert 0 <= line["mfu"] < 1  # rounded
        assert line["flops_per_second"] > 0
        assert line["padding_efficiency"] == line["compilations"] == 1


def test_peers_need_their_interpreter():
    finished = run("--systems", "torch bfloat16")
    assert finished.returncode == 2
    assert "these --systems need --peers" in finished.stderr
