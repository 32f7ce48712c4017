"""The command ``score``: scores by force-decoding equal the scores of the search."""

import json
import math

import pytest

from jaxformer.cli import main
from jaxformer.inference.pair_scores import score_pairs
from jaxformer.inference.translator import Translator
from jaxformer.search import BeamSearch

SOURCES = ["two hundred and one", "nine", "forty-two thousand", "seven hundred"]
SHORT = BeamSearch(max_length=16)


@pytest.fixture
def score(learned_workdir, tmp_path, capsys):
    """Scores pairs of lines, and returns the output."""

    def run(sources, targets, *flags, code=0):
        files = []
        for name, lines in (("source", sources), ("target", targets)):
            path = tmp_path / name
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            files += [f"--{name}", str(path)]
        assert main(["score", "--workdir", str(learned_workdir), *files, *map(str, flags)]) == code
        out, err = capsys.readouterr()
        return out.split("\n")[:-1] if code == 0 else err

    return run


@pytest.fixture(scope="module")
def translator(learned_workdir):
    return Translator.load(learned_workdir, search=SHORT)


def test_force_decoding_gives_the_score_of_the_search(translator):
    """Every hypothesis is scored from its tokens."""
    pairs, hypotheses = [], []
    for source, rows in zip(SOURCES, translator.hypotheses(SOURCES), strict=True):
        for row in rows:
            pairs.append((translator.source_ids(source), row.tokens))
            hypotheses.append(row)
    assert len(pairs) > 2 * len(SOURCES)
    for result, hypothesis in zip(score_pairs(translator, pairs), hypotheses, strict=True):
        penalty = ((5 + result.length) / 6) ** 0.6
        assert result.score == pytest.approx(result.log_prob / penalty, rel=1e-6)
        assert result.log_prob == pytest.approx(hypothesis.log_prob, abs=1e-5, rel=1e-6)
        assert result.score == pytest.approx(hypothesis.score, abs=1e-5)
        assert result.length == len(hypothesis.tokens)


def test_blank_lines(score):
    lines = score(["", "one", "", " "], ["", "", "eins", "\t"])
    assert [float(n) for n in lines[:1] + lines[2:]] == [0.0, -math.inf, -math.inf]
    # End-of-sentence alone, with a length penalty of 1.
    empty, impossible = [json.loads(line) for line in score(["one", ""], ["", "eins"], "--json")]
    assert empty["length"] == 1
    assert empty["score"] == empty["log_prob"] == pytest.approx(float(lines[1]), abs=1e-6)
    assert impossible["score"] is impossible["log_prob"] is None


def test_mistakes(score):
    error = score(["one", "two"], ["eins"], code=2)
    assert "expected as many lines in" in error
    assert "got 2 and 1" in error
    error = score(["a", "b"], ["c", "d " * 99], "--strict", code=2)
    assert "target:2: expected at most 63 tokens" in error
