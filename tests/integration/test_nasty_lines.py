"""Nasty lines: as many lines out as in, in order, and good lines as without the bad ones."""

import json
import math
import os
import sys
import threading

import pytest

from jaxformer.cli import main, text
from jaxformer.inference.translator import Translator
from jaxformer.search import BeamSearch

GOOD, BLANK, NOT_UTF8, TOO_LONG = "good", "blank", "not UTF-8", "expected "
# Inputs that text tools often get wrong, and the kinds of their lines.
NASTY = [
    *((content, [BLANK]) for content in (b"", b"\r")),
    (b"\n\n", [BLANK] * 3),
    *((content, [GOOD]) for content in (b"\t", b"two hundred\r", b"two\rhundred", b"two\0hundred")),
    (bytes(n for n in range(1, 32) if n != 10), [GOOD]),
    *(
        (words.encode(), [GOOD])
        for words in (
            # Line separators, other blanks, byte order marks, SentencePiece's own character.
            *("two\u0085hundred", "two\u2028hundred", "\u3000", "\u200b", "\ufeff", "▁ ▁▁"),
            *("\ufefftwo", "Z\u0351\u036b\u0343a\u0300", "\u200f\u05e9\u05dc", "\ufdd0\U0010ffff"),
            *("<s> two </s> <pad> <unk>", "0 ||| two ||| -1.0"),
        )
    ),
    *((content, [TOO_LONG]) for content in (b"two " * 10_000, b" " * 1_000_000)),
    # Latin-1, an unpaired surrogate, an overlong slash, a truncated character.
    *((c, [NOT_UTF8]) for c in (b"zw\xf6lf", b"\xed\xa0\x80", b"two\xc0\xaf", b"two\xe2\x82")),
    (bytes(range(256)), [GOOD, NOT_UTF8]),
    (b"two\r\nhundred", [GOOD, GOOD]),
]
# Every input is followed by a line that a model translates well, and the last has no line break.
ORDINARY = "two hundred and one"
CONTENT = b"".join(content + f"\n{ORDINARY}\n".encode() for content, _ in NASTY)[:-1]
KINDS = [kind for _, kinds in NASTY for kind in (*kinds, GOOD)]
BAD = [number for number, kind in enumerate(KINDS, start=1) if kind in (NOT_UTF8, TOO_LONG)]

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
    assert errors[-1].startswith(f"error: {len(BAD)} of {len(KINDS)} lines failed")
    assert not any("Traceback" in line for line in errors)


@pytest.mark.ci
def test_a_file_in_blocks(command, expected, monkeypatch, tmp_path):
    monkeypatch.setattr(text, "LINES_PER_BLOCK", 20)
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
