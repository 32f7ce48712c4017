"""The command ``translate`` on a tiny model: formats, files, streams and error messages."""

import io
import json
import os
import pathlib
import subprocess
import sys
import threading

import pytest

from jaxformer.cli import main, text
from jaxformer.inference.alignment import align, pharaoh
from jaxformer.inference.translator import Translator

SOURCES = ["two hundred and one", "nine", "", "forty-two thousand", "  ", "seven hundred"]


@pytest.fixture
def run(learned_workdir, monkeypatch, capsys):
    """Translates lines from standard input, and returns the output."""

    def translate(*arguments, lines=SOURCES):
        content = "".join(f"{line}\n" for line in lines).encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), "utf-8"))
        assert main(["translate", "--workdir", str(learned_workdir), *map(str, arguments)]) == 0
        return capsys.readouterr().out.split("\n")[:-1]

    return translate


@pytest.fixture
def refused(learned_workdir, capsys):
    """Returns the one-line error message for options."""

    def refuse(*arguments):
        assert main(["translate", "--workdir", str(learned_workdir), *map(str, arguments)]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        (error,) = [line for line in err.split("\n") if line.startswith("error: ")]
        return error

    return refuse


@pytest.fixture(scope="module")
def best(learned_workdir):
    """Returns all hypotheses of every source, best first."""
    return Translator.load(learned_workdir).hypotheses(SOURCES)


def test_plain_text(run, best):
    assert run() == [h[0].text if h else "" for h in best]


def test_scores(run, best):
    rows = [line.split("\t") for line in run("--scores")]
    assert [row[1] for row in rows] == run()
    expected = [h[0].score if h else 0.0 for h in best]
    assert [float(row[0]) for row in rows] == pytest.approx(expected, abs=1e-6)


def test_n_best_is_in_the_format_of_moses(run, best):
    rows = [line.split(" ||| ") for line in run("--n-best", 3)]
    expected = [(number, h.text, h.score) for number, hyps in enumerate(best) for h in hyps[:3]]
    expected = sorted([*expected, (2, "", 0.0), (4, "", 0.0)], key=lambda row: row[0])
    assert [(int(n), words) for n, words, _ in rows] == [(n, words) for n, words, _ in expected]
    assert [float(score) for *_, score in rows] == pytest.approx(
        [score for *_, score in expected], abs=1e-6
    )


@pytest.mark.parametrize(("flags", "count"), [([], 1), (["--n-best", "4"], 4)])
def test_json(run, best, learned_workdir, flags, count):
    tokenizer = Translator.load(learned_workdir).tokenizer
    rows = [json.loads(line) for line in run("--json", *flags)]
    assert rows == [
        {
            "source": source,
            "hypotheses": [
                {
                    "text": h.text,
                    "score": pytest.approx(h.score, abs=1e-6),
                    "log_prob": pytest.approx(h.log_prob, abs=1e-5),
                    "tokens": [tokenizer.piece(token) for token in h.tokens],
                }
                for h in hypotheses[:count]
            ],
        }
        for source, hypotheses in zip(SOURCES, best, strict=True)
    ]


def test_files(run, tmp_path, capsys):
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_bytes("\r\n".join(SOURCES).encode())
    expected = run()
    assert run("--input", source) == expected
    assert run("--output", output) == []
    assert output.read_text(encoding="utf-8").split("\n") == [*expected, ""]
    assert sorted(os.listdir(tmp_path)) == ["in.txt", "out.txt"]


def test_alignments_point_from_source_words_to_target_words(run, best, learned_workdir, tmp_path):
    output = tmp_path / "alignments"
    run("--alignments", output)
    lines = output.read_text(encoding="utf-8").split("\n")[:-1]
    assert len(lines) == len(SOURCES)
    translator = Translator.load(learned_workdir)
    for source, hypotheses, line in zip(SOURCES, best, lines, strict=True):
        pairs = [tuple(map(int, pair.split("-"))) for pair in line.split()]
        words = hypotheses[0].text.split() if hypotheses else []
        assert [target for _, target in pairs] == list(range(len(words)))
        assert all(0 <= s < len(source.split()) for s, _ in pairs)
        if hypotheses:  # Alignments do not depend on the batch.
            target = (hypotheses[0].text, hypotheses[0].tokens)
            assert pharaoh(align(translator, [source], [target])[0]) == line
    assert any(lines)


@pytest.mark.parametrize("size", [1, 2, 100])
def test_results_do_not_depend_on_blocks(run, monkeypatch, tmp_path, size):
    expected = run("--alignments", tmp_path / "whole")
    monkeypatch.setattr(text, "BLOCK", size)
    assert run("--alignments", tmp_path / "blocks") == expected
    assert (tmp_path / "blocks").read_text() == (tmp_path / "whole").read_text()


def test_prefixes_may_come_through_a_pipe(run, tmp_path):
    source, prefixes, pipe = tmp_path / "in.txt", tmp_path / "prefixes", tmp_path / "pipe"
    source.write_text("one\ntwo\n")
    prefixes.write_text("ein\n\n")
    os.mkfifo(pipe)
    threading.Thread(target=pipe.write_bytes, args=[b"ein\n\n"], daemon=True).start()
    expected = run("--input", source, "--prefixes", prefixes)
    assert run("--input", source, "--prefixes", pipe) == expected


def test_standard_output_may_be_closed(learned_workdir, tmp_path, monkeypatch, capsys):
    """Some services close it, and --output does not need it."""
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("one\n")
    arguments = ["translate", "--workdir", str(learned_workdir), "--input", str(source)]
    monkeypatch.setattr(sys, "stdout", None)
    assert main([*arguments, "--output", str(output)]) == 0
    assert len(output.read_text(encoding="utf-8").split("\n")) == 2
    assert main(arguments) == 2
    assert "standard output is closed: expected --output FILE" in capsys.readouterr().err


def test_a_closed_standard_error_does_not_matter(learned_workdir, tmp_path, run):
    """The output is complete nevertheless."""
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("".join(f"{line}\n" for line in SOURCES), encoding="utf-8")
    arguments = ["--workdir", learned_workdir, "--input", source, "--output", output]
    with subprocess.Popen(
        [sys.executable, "-m", "jaxformer.cli", "translate", *map(str, arguments)],
        stderr=subprocess.PIPE,
    ) as process:
        process.stderr.close()
        assert process.wait(timeout=120) == 0
    assert output.read_text(encoding="utf-8").split("\n") == [*run(), ""]


def test_an_interrupted_job_keeps_finished_lines(
    learned_workdir, tmp_path, monkeypatch, capsys, best
):
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("".join(f"{line}\n" for line in SOURCES))
    monkeypatch.setattr(text, "BLOCK", 2)
    hypotheses = Translator.hypotheses

    def interrupted(self, sentences, **rest):
        if sentences[0] == SOURCES[2]:
            raise KeyboardInterrupt
        return hypotheses(self, sentences, **rest)

    monkeypatch.setattr(Translator, "hypotheses", interrupted)
    arguments = ["translate", "--workdir", learned_workdir, "--input", source, "--output", output]
    assert main([str(argument) for argument in arguments]) == 130
    partial = tmp_path / f"out.txt.{os.getpid()}.partial"
    assert f"{partial}: finished lines" in capsys.readouterr().err
    assert partial.read_text(encoding="utf-8") == "".join(f"{h[0].text}\n" for h in best[:2])
    assert not output.exists()


def test_mistakes_in_a_file_show_before_translation(refused, tmp_path, monkeypatch):
    monkeypatch.setattr(text, "BLOCK", 1)
    monkeypatch.delattr(Translator, "hypotheses")  # Never reached.
    source = tmp_path / "in.txt"
    source.write_bytes(b"one\ntwo\ncaf\xe9\n")
    assert f"{source}:3: not UTF-8" in refused("--strict", "--input", source)
    source.write_text("one\n" + "nine " * 200 + "\n")
    assert f"{source}:2: expected at most 63 tokens" in refused("--strict", "--input", source)
    prefixes = tmp_path / "prefixes"
    prefixes.write_text("eins\n")
    error = refused("--input", source, "--prefixes", prefixes)
    assert f"expected as many lines in {source} as in {prefixes}: got 2 and 1" in error
    assert "nowhere: cannot be read" in refused("--input", tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--n-best 5", "--n-best must be from 1 to the beam size, 4: got 5; use --beam-size 5"),
        ("--n-best 0", "--n-best must be from 1 to the beam size, 4: got 0"),
        (
            "--samples 2 --n-best 5",
            "--n-best must be from 1 to the number of samples, 2: got 5; use --samples 5",
        ),
        ("--n-best 2 --scores", "--scores is not needed with --n-best, which prints them"),
        ("--alignment-layer 1", "--alignment-layer needs --alignments FILE"),
        ("--input a --output a", "--output a is an input; name another file"),
        ("--output a --alignments a", "--alignments a is also --output; name another file"),
        ("--top-k 3", "--top-k 3 works with --sampling only"),
    ],
)
def test_contradictory_options_are_refused(refused, flags, words):
    assert words in refused(*flags.split())


def test_a_missing_alignment_layer_is_refused(run, refused, tmp_path, monkeypatch):
    flags = ["--alignments", tmp_path / "a", "--alignment-layer", 2]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\n"), "utf-8"))
    assert "expected a decoder layer from 1 to 1: got 2" in refused(*flags)


@pytest.mark.ci
def test_a_stream_is_translated_line_by_line(learned_workdir):
    """An interactive user, or a program that waits for each answer, needs this."""
    project = pathlib.Path(__file__).parents[2]
    arguments = [sys.executable, "-m", "jaxformer.cli", "translate", "--workdir", learned_workdir]
    with subprocess.Popen(
        [*map(str, arguments), "--beam-size", "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=project,
        bufsize=0,
    ) as process:
        answers = []
        for line in (b"one", b"", b"two", b"\xff", b"nine " * 200, b"two"):
            process.stdin.write(line + b"\n")
            answers.append(process.stdout.readline().decode())
        process.stdin.close()
        assert process.wait(timeout=60) == 3
        error = process.stderr.read().decode()
    assert answers[1] == answers[3] == answers[4] == "\n"
    assert answers[5] == answers[2] != answers[0]
    assert "error: standard input:4: not UTF-8" in error
    assert "error: standard input:5: expected at most 63 tokens" in error
    assert error.endswith("error: 2 of 6 lines could not be done; see above\n")
    assert "Traceback" not in error
    assert "Fatal" not in error


@pytest.mark.ci
def test_a_strict_stream_ends_at_a_bad_line(learned_workdir):
    """Lines before it are translated, and standard input may still be open."""
    arguments = ["translate", "--workdir", str(learned_workdir), "--strict", "--beam-size", "1"]
    with subprocess.Popen(
        [sys.executable, "-m", "jaxformer.cli", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    ) as process:
        process.stdin.write(b"two\n" + b"nine " * 200 + b"\n")
        assert process.wait(timeout=60) == 2
        assert process.stdout.read().count(b"\n") == 1
        error = process.stderr.read().decode()
    assert "error: standard input:2: expected at most 63 tokens" in error
    assert "Traceback" not in error
    assert "Fatal" not in error
