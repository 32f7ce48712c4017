"""Nasty lines: as many lines out as in, in order, and good lines as without the bad ones."""

import gzip
import json
import math
import os
import re
import subprocess
import sys
import threading

import pytest

from jaxformer.cli import main, text
from jaxformer.inference.translator import Translator
from jaxformer.search import BeamSearch

from ..profiles import by_profile
from .nasty_lines import BAD, BLANK, CONTENT, GOOD, KINDS, NASTY, ORDINARY

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
    assert len(NASTY) > 60
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
    assert len({*lines}) > 20


def test_n_best_lists(command, expected):
    """A bad line has one row, as a blank line has."""
    code, lines, errors = command("translate", "--n-best", 2, content=CONTENT)
    check_errors(code, errors, "standard input")
    rows = [re.fullmatch(r"(\d+) \|\|\| (.*) \|\|\| (\S+)", line, re.DOTALL) for line in lines]
    assert None not in rows
    found = [(int(row[1]), row[2]) for row in rows]
    assert found == [
        (number, words)
        for number, hypotheses in enumerate(expected)
        for words in ([h.text for h in hypotheses[:2]] or [""])
    ]
    nan = [int(row[1]) + 1 for row in rows if math.isnan(float(row[3]))]
    assert nan == BAD


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
    for row, kind, line in zip(rows, KINDS, CONTENT.split(b"\n"), strict=True):
        if kind == GOOD:
            assert row["source"] == line.removesuffix(b"\r").decode()


@pytest.mark.ci
def test_bad_prefixes_are_bad_lines(command, expected, tmp_path):
    """The blank line of a bad prefix is reported by the name of the prefixes' file."""
    source, prefixes = tmp_path / "in", tmp_path / "prefixes"
    source.write_text(f"{ORDINARY}\n" * len(KINDS), encoding="utf-8")
    prefixes.write_bytes(CONTENT)
    code, lines, errors = command("translate", "--input", source, "--prefixes", prefixes)
    check_errors(code, errors, prefixes)
    assert [number for number, line in enumerate(lines, start=1) if not line] == BAD
    assert {line for line, kind in zip(lines, KINDS, strict=True) if kind == BLANK} == {
        expected[-1][0].text
    }


@pytest.mark.ci
@pytest.mark.parametrize("side", by_profile(["target"], nightly=["source", "target"]))
def test_scores_of_given_translations(command, tmp_path, side):
    (tmp_path / side).write_bytes(CONTENT)
    other = tmp_path / ("target" if side == "source" else "source")
    other.write_text(f"{ORDINARY}\n" * len(KINDS), encoding="utf-8")
    files = ["--source", tmp_path / "source", "--target", tmp_path / "target"]
    code, lines, errors = command("score", *files)
    check_errors(code, errors, tmp_path / side)
    scores = [float(line) for line in lines]
    assert [number for number, score in enumerate(scores, start=1) if math.isnan(score)] == BAD
    code, lines, errors = command("score", *files, "--json")
    check_errors(code, errors, tmp_path / side)
    rows = [json.loads(line) for line in lines]
    assert [number for number, row in enumerate(rows, start=1) if "error" in row] == BAD
    assert len(rows) == len(scores) == len(KINDS)


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
    """Memory does not grow with the line, whether it is compressed or not."""
    program = (
        "import resource, sys; from jaxformer.cli import main; code = main(sys.argv[1:]); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss); sys.exit(code)"
    )
    arguments = ["--workdir", str(learned_workdir), "--beam-size", "1", "--max-length", "16"]
    ordinary, peaks = f"{ORDINARY}\n".encode(), {}
    large = {"large.gz": by_profile(256, nightly=1024)} | by_profile({}, nightly={"large": 1024})
    for name, mebibytes in ({"small": 1} | large).items():
        path = tmp_path / name
        with gzip.open(path, "wb", 1) if name.endswith(".gz") else path.open("wb") as file:
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
        peaks[name] = int(peak) / 1024
        path.unlink()
    assert max(peaks.values()) < peaks["small"] + 64  # MiB
