"""The commands ``translate`` and ``score`` on a small model."""

import io
import json
import math
import os
import subprocess
import sys

import pytest

from jaxformer.cli import main, text
from jaxformer.data.tokenizer import Tokenizer
from jaxformer.inference.pair_scores import score_pairs
from jaxformer.inference.translator import Translator
from jaxformer.search import BeamSearch
from jaxformer.serving.backend import TranslatorBackend
from jaxformer.serving.protocol import Sentence

from ..runs import write_lines

# At most four sentences of at most 16 tokens, and a short maximum: two programs for the whole file.
SOURCES = ["two hundred and one", "nine", "", "forty-two thousand", "  ", "seven hundred"]
SHORT = BeamSearch(max_length=16)


@pytest.fixture
def command(learned_workdir):
    common = ["translate", "--workdir", str(learned_workdir), "--max-length", "16"]

    def run(*arguments):
        words = map(str, arguments)
        return main([*common, *words])

    return run


@pytest.fixture
def run(command, monkeypatch, capsys):
    def translate(*arguments, lines=SOURCES):
        content = "".join(f"{line}\n" for line in lines).encode()
        stdin = io.TextIOWrapper(io.BytesIO(content), "utf-8")
        monkeypatch.setattr(sys, "stdin", stdin)
        assert command(*arguments) == 0
        return capsys.readouterr().out.split("\n")[:-1]

    return translate


@pytest.fixture
def refused(command, capsys):
    def refuse(*arguments):
        assert command(*arguments) == 2
        out, err = capsys.readouterr()
        assert out == ""
        (error,) = [line for line in err.split("\n") if line.startswith("error: ")]
        return error

    return refuse


@pytest.fixture
def score(learned_workdir, tmp_path, capsys):
    """Scores pairs of lines, and returns the output."""

    def run(sources, targets, *flags, code=0):
        files = []
        for name, lines in (("source", sources), ("target", targets)):
            path = tmp_path / name
            write_lines(path, lines)
            files += [f"--{name}", str(path)]
        words = [*files, *map(str, flags)]
        assert main(["score", "--workdir", str(learned_workdir), *words]) == code
        out, err = capsys.readouterr()
        return out.split("\n")[:-1] if code == 0 else err

    return run


@pytest.fixture(scope="module")
def translator(learned_workdir):
    return Translator.load(learned_workdir, search=SHORT)


@pytest.fixture(scope="module")
def best(translator):
    """Returns all hypotheses of every source, best first."""
    return translator.hypotheses(SOURCES)


def first_of(hypotheses):
    """Returns the text and the score that a command prints; blank lines have no hypotheses."""
    if not hypotheses:
        return "", 0.0
    return hypotheses[0].text, hypotheses[0].score


@pytest.mark.smoke
def test_plain_text_and_scores(run, best):
    expected = [first_of(hypotheses) for hypotheses in best]
    texts = run()
    assert texts == [text for text, _ in expected]
    assert len(set(texts)) == 5

    rows = [line.split("\t") for line in run("--scores")]
    assert [text for _, text in rows] == texts
    scores = [float(score) for score, _ in rows]
    expected_scores = [score for _, score in expected]
    assert scores == pytest.approx(expected_scores, abs=1e-6)

    assert run(lines=[]) == []


def test_n_best_is_in_the_format_of_moses(run, best):
    expected = []
    for number, hypotheses in enumerate(best):
        for each in hypotheses[:3]:
            expected.append((number, each.text, each.score))
        if not hypotheses:
            expected.append((number, "", 0.0))

    lines = run("--n-best", 3)
    for line, (number, words, score) in zip(lines, expected, strict=True):
        found_number, found_words, found_score = line.split(" ||| ")
        assert found_number == str(number)
        assert found_words == words
        assert float(found_score) == pytest.approx(score, abs=1e-6)


def test_json(run, best, translator):
    piece = translator.tokenizer.piece
    rows = [json.loads(line) for line in run("--json", "--n-best", 4)]
    assert [row["source"] for row in rows] == SOURCES

    for row, hypotheses in zip(rows, best, strict=True):
        for found, expected in zip(row["hypotheses"], hypotheses, strict=True):
            assert found == {
                "text": expected.text,
                "score": pytest.approx(expected.score, abs=1e-6),
                "log_prob": pytest.approx(expected.log_prob, abs=1e-5),
                "tokens": [piece(token) for token in expected.tokens],
            }


def test_alignments_point_from_source_words_to_target_words(run, best, tmp_path, monkeypatch):
    output = tmp_path / "alignments"
    translations = run("--alignments", output)
    lines = output.read_text(encoding="utf-8").split("\n")[:-1]
    assert any(lines)

    for source, hypotheses, line in zip(SOURCES, best, lines, strict=True):
        pairs = [pair.split("-") for pair in line.split()]
        source_words = [int(place) for place, _ in pairs]
        target_words = [int(place) for _, place in pairs]
        words = hypotheses[0].text.split() if hypotheses else []
        assert target_words == list(range(len(words)))
        assert set(source_words) <= set(range(len(source.split())))

    # Neither alignments nor translations depend on the blocks.
    monkeypatch.setattr(text, "LINES_PER_BLOCK", 2)
    assert run("--alignments", tmp_path / "blocks") == translations
    assert (tmp_path / "blocks").read_text() == output.read_text()


def test_an_interrupted_job_keeps_finished_lines(command, tmp_path, monkeypatch, capsys, best):
    source = tmp_path / "in.txt"
    write_lines(source, SOURCES)
    output = tmp_path / "out.txt"
    output.write_text("from last time\n")
    monkeypatch.setattr(text, "LINES_PER_BLOCK", 2)
    translate_ids = Translator.translate_ids

    def interrupted(self, *arguments, first, **rest):
        if first == 3:
            raise KeyboardInterrupt
        return translate_ids(self, *arguments, first=first, **rest)

    monkeypatch.setattr(Translator, "translate_ids", interrupted)
    assert command("--input", source, "--output", output) == 130

    partial = tmp_path / f"out.txt.{os.getpid()}.partial"
    assert f"{partial}: finished lines" in capsys.readouterr().err
    finished = [hypotheses[0].text for hypotheses in best[:2]]
    assert partial.read_text(encoding="utf-8").splitlines() == finished
    assert output.read_text() == "from last time\n"


def test_contradictory_options_are_refused(refused, tmp_path):
    source = tmp_path / "a"
    source.write_text("one\n")
    for flags, words in (
        ("--n-best 5", "--n-best must be from 1 to the beam size, 4: got 5; use --beam-size 5"),
        ("--n-best 2 --scores", "--scores is not needed with --n-best, which prints them"),
        ("--alignment-layer 1", "--alignment-layer needs --alignments FILE"),
        ("--input a --output a", "--output a is an input; name another file"),
        (f"--input {source} --alignments {source}.b --alignment-layer 2", "layer from 1 to 1: got"),
    ):
        assert words in refused(*flags.split())


def test_force_decoding_gives_the_score_of_the_search(translator, best):
    """Every hypothesis is scored from its tokens."""
    pairs = []
    hypotheses = []
    for source, rows in zip(SOURCES, best, strict=True):
        for row in rows:
            pairs.append((translator.source_ids(source), row.tokens))
            hypotheses.append(row)
    assert len(pairs) > 2 * len(SOURCES)

    for result, hypothesis in zip(score_pairs(translator, pairs), hypotheses, strict=True):
        penalty = ((5 + result.length) / 6) ** 0.6
        expected = result.log_prob / penalty
        assert result.score == pytest.approx(expected, rel=1e-6)
        assert result.log_prob == pytest.approx(hypothesis.log_prob, abs=1e-5, rel=1e-6)
        assert result.score == pytest.approx(hypothesis.score, abs=1e-5)
        assert result.length == len(hypothesis.tokens)


def test_scores_of_blank_lines(score):
    both, no_target, no_source, neither = map(
        float,
        score(["", "one", "", " "], ["", "", "eins", "\t"]),
    )
    assert both == 0.0
    assert no_source == -math.inf
    assert neither == -math.inf

    # End-of-sentence alone, with a length penalty of 1.
    lines = score(["one", ""], ["", "eins"], "--json")
    empty, impossible = map(json.loads, lines)
    assert empty["length"] == 1
    assert empty["score"] == empty["log_prob"]
    assert empty["score"] == pytest.approx(no_target, abs=1e-6)
    assert impossible["score"] is None
    assert impossible["log_prob"] is None


def test_sides_of_other_lengths_are_not_scored(score):
    error = score(["one", "two"], ["eins"], code=2)
    assert "expected as many lines in" in error
    assert "got 2 and 1" in error


@pytest.mark.ci
def test_a_stream_is_translated_line_by_line(learned_workdir):
    """An interactive user, or a program that waits for each answer, needs this."""
    program = [sys.executable, "-m", "jaxformer", "translate"]
    options = ["--workdir", str(learned_workdir), "--beam-size", "1"]
    process = subprocess.Popen(
        program + options,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )

    answers = []
    with process:
        for line in (b"one", b"", b"two", b"\xff", b"nine " * 200, b"two"):
            process.stdin.write(line + b"\n")
            answers.append(process.stdout.readline().decode())
        process.stdin.close()
        assert process.wait(timeout=60) == 3
        error = process.stderr.read().decode()

    one, blank, two, not_utf8, too_long, same = answers
    assert blank == "\n"
    assert not_utf8 == "\n"
    assert too_long == "\n"
    assert same == two
    assert one != two

    assert "error: standard input:4: not UTF-8" in error
    too_long = "error: standard input:5: expected at most 63 tokens (model.max_length), got "
    assert too_long in error
    assert "; with --split, jaxformer translate and serve split it into sentences\n" in error
    assert error.endswith("error: 2 of 6 lines failed; see above\n")


PARAGRAPHS = ["Two hundred. Nine.", "", "Seven."]


def test_paragraphs_are_translated_by_sentence(run, learned_workdir):
    pytest.importorskip("sentencex", reason="sentencex is not installed")
    first, second, third = run(lines=["Two hundred.", "Nine.", "Seven."])
    assert run("--split", lines=PARAGRAPHS) == [f"{first} {second}", "", third]

    found = [json.loads(line) for line in run("--split", "--json", lines=PARAGRAPHS)]
    assert [row["source"] for row in found] == PARAGRAPHS
    sources = [[each["source"] for each in row["sentences"]] for row in found]
    assert sources == [["Two hundred.", "Nine."], [], ["Seven."]]
    assert found[0]["sentences"][1]["hypotheses"][0]["text"] == second

    translator = Translator.load(learned_workdir, search=SHORT)
    assert translator.translate_paragraphs(PARAGRAPHS) == [f"{first} {second}", "", third]


def test_paragraphs_have_scores_and_alignments(run, refused, tmp_path):
    """Scores of sentences are added, and words are numbered through the line."""
    pytest.importorskip("sentencex", reason="sentencex is not installed")
    alone = [row.split(" ||| ") for row in run("--n-best", 2, lines=["Two hundred.", "Nine."])]
    (_, first, score), (_, second, worse), (_, third, other), (_, fourth, last) = alone
    rows = [row.split(" ||| ") for row in run("--split", "--n-best", 2, lines=PARAGRAPHS[:2])]
    assert [row[:2] for row in rows] == [
        ["0", f"{first} {third}"],
        ["0", f"{second} {fourth}"],
        ["1", ""],
    ]
    sums = [float(score) + float(other), float(worse) + float(last), 0.0]
    assert [float(row[2]) for row in rows] == pytest.approx(sums, abs=2e-6)
    (row,) = run("--split", "--scores", lines=PARAGRAPHS[:1])
    assert float(row.split("\t")[0]) == pytest.approx(sums[0], abs=2e-6)

    def aligned(lines, *options):
        translations = run("--alignments", tmp_path / "out", *options, lines=lines)
        pairs = [line.split() for line in (tmp_path / "out").read_text().split("\n")[:-1]]
        return pairs, translations

    (of_first, of_second), (text, _) = aligned(["Two hundred.", "Nine."])
    shifted = []
    for pair in of_second:
        source, target = map(int, pair.split("-"))
        shifted.append(f"{source + 2}-{target + len(text.split())}")
    assert shifted
    (found, blank), _ = aligned(["  Two hundred.   Nine.", ""], "--split")
    assert found == of_first + shifted
    assert blank == []

    error = refused("--split", "--prefix", "ein")
    assert error.startswith("error: --prefix excludes --split")


@pytest.mark.ci
def test_a_glossary_forces_its_terms(run, refused, tmp_path):
    terms = tmp_path / "terms.tsv"
    terms.write_text("seven hundred\tHundertfach\n")
    [free, other] = run(lines=["seven hundred", "nine"])
    [forced, same] = run("--glossary", terms, lines=["seven hundred", "nine"])
    assert "hundertfach" in forced.lower()
    assert forced != free
    assert same == other

    error = refused("--glossary", terms, "--prefix", "ein")
    assert error.startswith("error: --prefix excludes --glossary, which forces the beginnings of ")


@pytest.fixture
def tokenized(monkeypatch):
    """Returns a list of all texts that are tokenized."""
    texts = []
    encode = Tokenizer._encode

    def count(tokenizer, lines, **options):
        texts.extend(filter(None, lines))
        return encode(tokenizer, lines, **options)

    monkeypatch.setattr(Tokenizer, "_encode", count)
    return texts


def test_a_line_of_a_file_is_tokenized_once(command, tokenized, tmp_path, capsys):
    source = tmp_path / "in.txt"
    source.write_text("nine\nseven hundred\n")
    alignments = tmp_path / "alignments"
    assert command("--input", source, "--alignments", alignments) == 0
    assert tokenized == ["nine", "seven hundred"]


def test_a_sentence_for_the_server_is_tokenized_once(translator, tokenized):
    sentences = [
        Sentence("nine", "de", only_best=True, attention=True),
        Sentence("nine " * 200, "de", only_best=True, attention=False),
    ]
    answer, error = TranslatorBackend(translator).translate(sentences)
    assert answer.texts == translator.translate(["nine"])
    assert answer.attention["source"] == ["nine"]
    assert "expected at most" in str(error)
    assert tokenized == ["nine", "nine " * 200, "nine"]  # the last by translate
