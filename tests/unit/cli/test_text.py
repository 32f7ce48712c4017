"""Lines of streams are read as they arrive, and files get their name when complete."""

import gzip
import io
import itertools
import os
import subprocess
import sys
import tracemalloc

import pytest

from jaxformer.cli import text
from jaxformer.cli.outputs import open_output
from jaxformer.cli.text import (
    Line,
    PrefixOptions,
    blocks_as_they_arrive,
    blocks_of,
    lines_with_errors,
    read_text,
    report_unknown,
    zip_lines,
)
from jaxformer.data.bpe import train_tokenizer
from jaxformer.errors import UserError


def test_unknown_characters_are_reported_for_the_first_lines_of_a_block(capsys):
    tokenizer = train_tokenizer(["a b"] * 9, 265)
    texts = ["a", "é\xa0b🙂", *["ñöüß"] * 10, "b"]
    report_unknown(tokenizer, map(Line, itertools.count(7), texts), "in.txt")

    lines = capsys.readouterr().err.split("\n")
    end = "are not in the vocabulary and may disturb the translation"
    assert lines[0] == f"note: in.txt:8: 'é' (U+00E9), '🙂' (U+1F642) {end}"
    first = "'ñ' (U+00F1), 'ö' (U+00F6), 'ü' (U+00FC)"
    assert lines[9] == f"note: in.txt:17: {first} and 1 more {end}"
    assert lines[10:] == ["note: in.txt: 1 more lines with such characters", ""]


@pytest.fixture
def pipe(monkeypatch):
    """Makes standard input a pipe, and returns its writing end."""
    reading, writing_end = os.pipe()
    with open(reading, encoding="utf-8") as stdin, open(writing_end, "wb", buffering=0) as file:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield file


def test_typed_lines_arrive_one_by_one(pipe):
    arriving = blocks_as_they_arrive(read_text(None).lines(), 100)
    for number, line in enumerate(("one", "two", ""), 1):
        pipe.write(f"{line}\n".encode())
        assert next(arriving) == [Line(number, line)]

    pipe.write(b"the last without its end")
    pipe.close()
    assert list(arriving) == [[Line(4, "the last without its end")]]


def test_lines_that_arrive_together_are_one_block(pipe, monkeypatch):
    monkeypatch.setattr(text, "_BLOCK_TIMEOUT", 60)
    texts = [f"{n}" for n in range(1000)]
    pipe.write("".join(f"{text}\n" for text in texts).encode())
    pipe.close()

    arriving = list(blocks_as_they_arrive(read_text(None).lines(), 400))
    assert [len(block) for block in arriving] == [400, 400, 200]
    expected = [Line(number, text) for number, text in enumerate(texts, 1)]
    assert [*itertools.chain(*arriving)] == expected


def test_strict_reading_ends_at_a_bad_line(pipe, tmp_path, monkeypatch):
    """Lines before it are yielded first from a pipe, and none from a file."""
    monkeypatch.setattr(text, "_BLOCK_TIMEOUT", 60)
    content = b"one\ntwo\ncaf\xe9\nfour\n"
    pipe.write(content)
    pipe.close()

    def encode(line):
        return list(line.text)

    with blocks_of(read_text(None), encode, None, strict=True) as (arriving, *_):
        assert next(arriving) == [
            Line(1, "one", encoded=["o", "n", "e"]),
            Line(2, "two", encoded=["t", "w", "o"]),
        ]
        with pytest.raises(UserError, match="standard input:3: not UTF-8"):
            next(arriving)

    path = tmp_path / "in.txt"
    path.write_bytes(content)
    with (
        pytest.raises(UserError, match=r"in.txt:3: not UTF-8"),
        blocks_of(read_text(path), encode, None, strict=True),
    ):
        pytest.fail("reads before it refuses")


@pytest.mark.parametrize("excess", [0, 1, text._MAX_LINE_BYTES])
def test_too_long_a_line_is_skipped_up_to_its_end(excess):
    long = "a" * (text._MAX_LINE_BYTES - 1 + excess)
    file = io.BytesIO(f"one\n{long}\ntwo".encode())
    found = list(lines_with_errors(file.readline, "in"))

    middle = Line(2, long)
    if excess > 0:
        middle = Line(2, "", error=f"in:2: {text._TOO_LONG}")
    assert found == [Line(1, "one"), middle, Line(3, "two")]


@pytest.mark.parametrize("name", ["in.txt", "in.txt.gz"])
def test_a_line_without_an_end_does_not_fill_the_memory(name, tmp_path):
    content = b"a" * (1 << 26)
    if name.endswith(".gz"):
        content = gzip.compress(content, 1)
    path = tmp_path / name
    path.write_bytes(content)

    tracemalloc.start()
    [line] = read_text(path).lines()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert line.error is not None
    assert peak < 1 << 21


def test_a_file_can_be_read_twice_and_a_pipe_once(tmp_path, monkeypatch, pipe):
    lines = read_text(None)
    assert lines.stream
    pipe.write("one".encode("utf-16-be"))
    with pytest.raises(UserError, match="standard input:1: expected UTF-8 text, got UTF-16BE"):
        next(lines.lines())

    path = tmp_path / "in.txt"
    path.write_bytes(b"one\r\n\ntwo")
    lines = read_text(path)
    assert not lines.stream
    for _ in range(2):
        assert list(lines.lines()) == [Line(1, "one"), Line(2, ""), Line(3, "two")]

    with path.open(encoding="utf-8") as stdin:
        stdin.buffer.readline()  # Another reader has consumed a line.
        monkeypatch.setattr(sys, "stdin", stdin)
        lines = read_text(None)
        assert not lines.stream
        for _ in range(2):
            assert list(lines.lines()) == [Line(1, ""), Line(2, "two")]

    os.mkfifo(tmp_path / "pipe")
    assert read_text(tmp_path / "pipe").stream


def test_prefixes(tmp_path):
    source = tmp_path / "in"
    source.write_text("one\ntwo\n", encoding="utf-8")
    prefixes = tmp_path / "prefixes"
    prefixes.write_text("eins\n\n", encoding="utf-8")

    for forced, expected in (
        (PrefixOptions(), None),
        (PrefixOptions(prefix="Der"), ["Der", "Der"]),
        (PrefixOptions(prefixes=prefixes), ["eins", ""]),
    ):
        lines = list(forced.text(source).lines())
        assert [line.text for line in lines] == ["one", "two"]
        assert forced.prefixes_of(lines) == expected


def test_texts_are_paired_if_they_have_one_length():
    assert list(zip_lines(iter("ab"), iter("cd"), "", "")) == [("a", "c"), ("b", "d")]
    assert list(zip_lines(iter(""), iter(""), "", "")) == []

    for first, second in [(3, 5), (5, 3), (0, 2)]:
        words = f"expected as many lines in a as in b: got {first} and {second}"
        with pytest.raises(UserError, match=words):
            list(zip_lines(iter("x" * first), iter("y" * second), "a", "b"))


def test_a_file_gets_its_name_when_complete(tmp_path):
    path = tmp_path / "new" / "out.txt"
    with open_output(path) as write:
        write(["eins", "", "größer"])
        assert not path.exists()
        [partial] = path.parent.iterdir()
        assert partial.name == f"out.txt.{os.getpid()}.partial"
        # After a kill, the partial file would contain these complete lines.
        assert partial.read_text(encoding="utf-8") == "eins\n\ngrößer\n"

    assert path.read_bytes() == "eins\n\ngrößer\n".encode()
    assert list(path.parent.iterdir()) == [path]


def test_a_long_compilation_is_announced_on_a_terminal():
    code = (
        "import io, sys, time, jax, jaxformer.cli.text as text\n"
        "sys.stderr = io.StringIO()\n"
        "sys.stderr.isatty = lambda: sys.argv[1] == 'terminal'\n"
        "text._SECONDS_TO_COMPILE = float(sys.argv[2])\n"
        "text.announce_compilations()\n"
        "jax.jit(lambda x: jax.lax.sort(x @ x))(jax.numpy.ones((5, 5)))\n"
        "time.sleep(0.1)\n"
        "print(sys.stderr.getvalue().count('compiling; '))"
    )

    for place, seconds, is_announced in (
        ("terminal", "0.0", True),
        ("terminal", "60", False),
        ("file", "0.0", False),
    ):
        command = [sys.executable, "-c", code, place, seconds]
        printed = subprocess.check_output(command, text=True)
        assert (int(printed) > 0) == is_announced
