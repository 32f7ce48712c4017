"""Nasty lines: as many lines out as in, in order, and good lines as without the bad ones."""

import json
import math
import os
import sys
import threading
from typing import NamedTuple

import pytest

from jaxformer.cli import main, text
from jaxformer.inference.translator import Translator
from jaxformer.search import BeamSearch

GOOD = "good"
BLANK = "blank"
NOT_UTF8 = "not UTF-8"
TOO_LONG = "expected "

# Line separators, other blanks, byte order marks, SentencePiece's own character, and so on.
ODD_CHARACTERS = [
    "two\u0085hundred",
    "two\u2028hundred",
    "\u3000",
    "\u200b",
    "\ufeff",
    "▁ ▁▁",
    "\ufefftwo",
    "Z\u0351\u036b\u0343a\u0300",
    "\u200f\u05e9\u05dc",
    "\ufdd0\U0010ffff",
    "<s> two </s> <pad> <unk>",
    "0 ||| two ||| -1.0",
]
# Inputs that text tools often get wrong, and the kinds of their lines.
NASTY = [
    (b"", [BLANK]),
    (b"\r", [BLANK]),
    (b"\n\n", [BLANK] * 3),
    (b"\t", [GOOD]),
    (b"two hundred\r", [GOOD]),
    (b"two\rhundred", [GOOD]),
    (b"two\0hundred", [GOOD]),
    (bytes(n for n in range(1, 32) if n != 10), [GOOD]),
    *((words.encode(), [GOOD]) for words in ODD_CHARACTERS),
    (b"two " * 10_000, [TOO_LONG]),
    (b" " * 1_000_000, [TOO_LONG]),
    # Latin-1, an unpaired surrogate, an overlong slash, a truncated character.
    (b"zw\xf6lf", [NOT_UTF8]),
    (b"\xed\xa0\x80", [NOT_UTF8]),
    (b"two\xc0\xaf", [NOT_UTF8]),
    (b"two\xe2\x82", [NOT_UTF8]),
    (bytes(range(256)), [GOOD, NOT_UTF8]),
    (b"two\r\nhundred", [GOOD, GOOD]),
]
# Every input is followed by a line that a model translates well, and the last has no line break.
ORDINARY = "two hundred and one"
AFTER = f"\n{ORDINARY}\n".encode()
LINES = [content + AFTER for content, _ in NASTY]
CONTENT = b"".join(LINES).removesuffix(b"\n")
KINDS = [kind for _, kinds in NASTY for kind in (*kinds, GOOD)]
NUMBERED = list(enumerate(KINDS, start=1))
BAD = [number for number, kind in NUMBERED if kind in (NOT_UTF8, TOO_LONG)]

# A short maximum needs one program instead of two for a shape.
SHORT = BeamSearch(max_length=16)


class Result(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    lines: list[str]
    errors: list[str]


def lines_of(written):
    *lines, rest = written.decode().split("\n")
    assert rest == ""
    return lines


@pytest.fixture
def command(learned_workdir, monkeypatch, capsysbinary):
    """Runs a command with bytes on standard input, through a pipe; returns its ``Result``."""

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
            words = [*short, *map(str, arguments)]
            code = main([name, "--workdir", str(learned_workdir), *words])
        feeder.join()

        written = capsysbinary.readouterr()
        return Result(code, lines_of(written.out), lines_of(written.err))

    return run


@pytest.fixture(scope="module")
def expected(learned_workdir):
    """Returns the n-best list of every line that can be done; none for the others."""
    texts = [line.decode("utf-8", "replace") for line in CONTENT.split(b"\n")]
    assert len(texts) == len(KINDS)

    good = [number for number, kind in enumerate(KINDS) if kind == GOOD]
    cleaned = [texts[number].removesuffix("\r") for number in good]
    translator = Translator.load(learned_workdir, search=SHORT)
    found = translator.hypotheses(cleaned)
    assert all(found)

    lists = dict(zip(good, found, strict=True))
    return [lists.get(number, []) for number in range(len(KINDS))]


def best_of(hypotheses):
    """Returns the first text of an n-best list, which may be empty."""
    return hypotheses[0].text if hypotheses else ""


def check_errors(result, name):
    """Checks the exit code, and that each bad line is reported with its number and the reason."""
    assert result.code == 3

    reports = [line for line in result.errors if line.startswith(f"error: {name}:")]
    for line, number in zip(reports, BAD, strict=True):
        _, _, line_number, reason, *_ = line.split(":")
        assert int(line_number) == number
        assert reason.startswith(f" {KINDS[number - 1]}")

    assert result.errors[-1].startswith(f"error: {len(BAD)} of {len(KINDS)} lines failed")
    for line in result.errors:
        assert "Traceback" not in line


@pytest.mark.ci
def test_a_file_in_blocks(command, expected, monkeypatch, tmp_path):
    monkeypatch.setattr(text, "LINES_PER_BLOCK", 20)
    source = tmp_path / "in"
    output = tmp_path / "out"
    alignments = tmp_path / "alignments"
    source.write_bytes(CONTENT)

    files = ["--input", source, "--output", output, "--alignments", alignments]
    result = command("translate", *files)

    check_errors(result, source)
    assert result.lines == []
    best = list(map(best_of, expected))
    assert lines_of(output.read_bytes()) == best
    aligned = lines_of(alignments.read_bytes())
    assert len(aligned) == len(KINDS)
    assert not any(aligned[number - 1] for number in BAD)
    assert sorted(os.listdir(tmp_path)) == ["alignments", "in", "out"]


def test_scores(command, expected):
    result = command("translate", "--scores", content=CONTENT)

    check_errors(result, "standard input")
    numbers = range(1, len(KINDS) + 1)
    for number, line, hypotheses in zip(numbers, result.lines, expected, strict=True):
        score, _, words = line.partition("\t")
        assert words == best_of(hypotheses)
        assert math.isnan(float(score)) == (number in BAD)
    assert len(set(result.lines)) > 10


def test_json_of_a_file(command, expected, tmp_path):
    source = tmp_path / "in"
    source.write_bytes(CONTENT)

    result = command("translate", "--json", "--input", source)

    check_errors(result, source)
    rows = [json.loads(line) for line in result.lines]
    for row, hypotheses in zip(rows, expected, strict=True):
        found = [hypothesis["text"] for hypothesis in row["hypotheses"]]
        assert (found or [""])[0] == best_of(hypotheses)
    with_error = [number for number, row in enumerate(rows, start=1) if "error" in row]
    assert with_error == BAD


@pytest.mark.ci
def test_scores_of_given_translations(command, tmp_path):
    source = tmp_path / "source"
    target = tmp_path / "target"
    source.write_text(f"{ORDINARY}\n" * len(KINDS), encoding="utf-8")
    target.write_bytes(CONTENT)

    result = command("score", "--source", source, "--target", target)

    check_errors(result, target)
    assert len(result.lines) == len(KINDS)
    scores = enumerate(map(float, result.lines), start=1)
    assert [number for number, score in scores if math.isnan(score)] == BAD


def test_strict_refuses_a_file_before_any_work(command, monkeypatch, tmp_path):
    monkeypatch.delattr(Translator, "hypotheses")  # Never reached.
    source = tmp_path / "in"
    output = tmp_path / "out"
    source.write_bytes(CONTENT)

    for arguments in (
        ("translate", "--strict", "--input", source, "--output", output),
        ("score", "--strict", "--source", source, "--target", source, "--output", output),
        ("evaluate", "--source", source, "--reference", source, "--output", output),
    ):
        result = command(*arguments)
        assert result.code == 2
        assert result.lines == []
        assert not output.exists()

        message = result.errors[-1]
        assert message.startswith(f"error: {source}:")
        _, _, line_number, *_ = message.split(":")
        assert int(line_number) in BAD

    result = command("translate", "--prefix", "zwei " * 100)
    assert result.code == 2
    assert result.lines == []
    assert result.errors[-1].startswith("error: --prefix: expected at most 63 tokens")
