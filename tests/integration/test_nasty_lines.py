"""Nasty lines: as many lines out as in, in order, and good lines as without the bad ones."""

import gzip
import json
import math
import os
import subprocess
import sys
import threading

import pytest

from jaxformer.cli import main, text
from jaxformer.inference.translator import Translator
from jaxformer.search import BeamSearch

from ..profiles import by_profile
from .nasty_lines import BAD, CONTENT, GOOD, KINDS, ORDINARY

# A short maximum needs one program instead of two for a shape.
SHORT = BeamSearch(max_length=16)


@pytest.fixture
def command(learned_workdir, monkeypatch, capsysbinary):
    """Runs a command with bytes on standard input, through a pipe; returns code, lines, errors."""

    def run(name, *arguments, content=b""):
        reading, writing = os.pipe()

        def feed():
            with open(writing, "wb") as pipe:
                pipe.write(content)

        feeder = threading.Thread(target=feed)
        feeder.start()
        with open(reading, encoding="ascii") as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            short = [] if name == "score" else ["--max-length", "16"]
            code = main([name, "--workdir", str(learned_workdir), *short, *map(str, arguments)])
        feeder.join()
        out, err = capsysbinary.readouterr()
        return code, out.decode().split("\n")[:-1], err.decode().split("\n")[:-1]

    return run


@pytest.fixture(scope="module")
def expected(learned_workdir):
    """Returns the n-best list of every line that can be done; none for the others."""
    texts = [line.decode("utf-8", "replace") for line in CONTENT.split(b"\n")]
    assert len(texts) == len(KINDS)
    good = [number for number, kind in enumerate(KINDS) if kind == GOOD]
    cleaned = [texts[number].removesuffix("\r") for number in good]
    found = Translator.load(learned_workdir, search=SHORT).hypotheses(cleaned)
    assert all(found)
    lists = dict(zip(good, found, strict=True))
    return [lists.get(number, []) for number in range(len(KINDS))]


def check_errors(code, errors, name):
    """Checks the exit code, and that each bad line is reported with its number and the reason."""
    assert code == 3
    reports = [line for line in errors if line.startswith(f"error: {name}:")]
    assert [int(line.split(":")[2]) for line in reports] == BAD
    for line, number in zip(reports, BAD, strict=True):
        assert line.split(":")[3].startswith(f" {KINDS[number - 1]}")
    assert errors[-1].startswith(f"error: {len(BAD)} of {len(KINDS)} lines could not be done")
    assert not any("Traceback" in line for line in errors)


@pytest.mark.ci
@pytest.mark.parametrize("size", by_profile([100], nightly=[7, 100, 4096]))
def test_a_file_in_blocks(command, expected, monkeypatch, tmp_path, size):
    monkeypatch.setattr(text, "BLOCK", size)
    source, output, alignments = tmp_path / "in", tmp_path / "out", tmp_path / "alignments"
    source.write_bytes(CONTENT)
    code, lines, errors = command(
        "translate", "--input", source, "--output", output, "--alignments", alignments
    )
    check_errors(code, errors, source)
    assert lines == []
    assert output.read_bytes().decode() == "".join(f"{h[0].text if h else ''}\n" for h in expected)
    aligned = alignments.read_text(encoding="utf-8").split("\n")[:-1]
    assert len(aligned) == len(KINDS)
    assert not any(aligned[number - 1] for number in BAD)
    assert sorted(os.listdir(tmp_path)) == ["alignments", "in", "out"]


def test_scores(command, expected):
    code, lines, errors = command("translate", "--scores", content=CONTENT)
    check_errors(code, errors, "standard input")
    for number, (line, hypotheses) in enumerate(zip(lines, expected, strict=True), start=1):
        score, _, words = line.partition("\t")
        assert words == (hypotheses[0].text if hypotheses else "")
        assert math.isnan(float(score)) == (number in BAD)
    assert len({*lines}) > 10


def test_json_of_a_file(command, expected, tmp_path):
    source = tmp_path / "in"
    source.write_bytes(CONTENT)
    code, lines, errors = command("translate", "--json", "--input", source)
    check_errors(code, errors, source)
    rows = [json.loads(line) for line in lines]
    assert [row["hypotheses"][0]["text"] if row["hypotheses"] else "" for row in rows] == [
        h[0].text if h else "" for h in expected
    ]
    assert [number for number, row in enumerate(rows, start=1) if "error" in row] == BAD


@pytest.mark.ci
def test_scores_of_given_translations(command, tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text(f"{ORDINARY}\n" * len(KINDS), encoding="utf-8")
    target.write_bytes(CONTENT)
    code, lines, errors = command("score", "--source", source, "--target", target)
    check_errors(code, errors, target)
    assert len(lines) == len(KINDS)
    assert [n for n, line in enumerate(lines, start=1) if math.isnan(float(line))] == BAD


def test_strict_refuses_a_file_before_any_work(command, monkeypatch, tmp_path):
    monkeypatch.delattr(Translator, "hypotheses")  # Never reached.
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_bytes(CONTENT)
    for arguments in (
        ("translate", "--strict", "--input", source, "--output", output),
        ("score", "--strict", "--source", source, "--target", source, "--output", output),
        ("evaluate", "--source", source, "--reference", source, "--output", output),
    ):
        code, lines, errors = command(*arguments)
        assert (code, lines) == (2, [])
        assert errors[-1].startswith(f"error: {source}:")
        assert int(errors[-1].split(":")[2]) in BAD
        assert not output.exists()
    code, lines, errors = command("translate", "--prefix", "zwei " * 100)
    assert (code, lines) == (2, [])
    assert errors[-1].startswith("error: --prefix: expected at most 63 tokens")


@pytest.mark.ci
def test_a_gigabyte_without_a_line_break(learned_workdir, tmp_path):
    """Memory does not grow with the line."""
    program = (
        "import resource, sys; from jaxformer.cli import main; code = main(sys.argv[1:]); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss); sys.exit(code)"
    )
    arguments = ["--workdir", str(learned_workdir), "--beam-size", "1", "--max-length", "16"]
    ordinary, peaks = f"{ORDINARY}\n".encode(), []
    for mebibytes in (1, by_profile(256, nightly=1024)):
        path = tmp_path / "lines.gz"
        with gzip.open(path, "wb", 1) as file:
            file.write(ordinary)
            for _ in range(mebibytes):
                file.write(bytes(1 << 20))
            file.write(b"\n" + ordinary)
        command = [sys.executable, "-c", program, "translate", *arguments, "--input", str(path)]
        result = subprocess.run(command, capture_output=True, text=True)
        assert result.returncode == 3, result.stderr
        first, blank, last, peak = result.stdout.split("\n")[:-1]
        assert first == last != blank == ""
        assert f"error: {path}:2: expected a line of less than 262144 bytes" in result.stderr
        peaks.append(int(peak) / 1024)
    assert peaks[1] < peaks[0] + 64  # MiB
