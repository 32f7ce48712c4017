"""The command ``heads`` against the scores of the commands ``score`` and ``evaluate``."""

import json

import pytest

from jaxformer.cli import main

PAIRS = [("seven hundred and two", "siebenhundertzwei"), ("twenty-one", "einundzwanzig")]


@pytest.fixture
def files(tmp_path):
    source = tmp_path / "some.en"
    reference = tmp_path / "some.de"
    source.write_text("".join(f"{english}\n" for english, _ in PAIRS), "utf-8")
    reference.write_text("".join(f"{german}\n" for _, german in PAIRS), "utf-8")
    return source, reference


def test_the_whole_model_and_each_head_have_a_line(learned_workdir, files, tmp_path, capsys):
    source, reference = map(str, files)
    picture = tmp_path / "heads.png"
    command = ["heads", "--workdir", str(learned_workdir), "--source", source]
    command += ["--reference", reference, "--beam-size", "1", "--max-extra-length", "8"]
    assert main([*command, "--output", str(picture)]) == 0

    head, whole, *rest = capsys.readouterr().out.splitlines()
    assert head.split() == ["loss", "BLEU"]
    assert rest.pop() == str(picture)
    assert picture.read_bytes().startswith(b"\x89PNG")

    # One layer of four heads for each of three kinds of attention.
    names = [line.split()[:5] for line in rest]
    expected = []
    for kind in ("encoder", "decoder", "cross"):
        expected += [[kind, "layer", "1", "head", str(number)] for number in range(1, 5)]
    assert names == expected

    arguments = ["--workdir", str(learned_workdir), "--source", source, "--target", reference]
    assert main(["score", *arguments, "--json"]) == 0
    scores = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    tokens = sum(score["length"] for score in scores)
    loss = -sum(score["log_prob"] for score in scores) / tokens
    assert float(whole.split()[2]) == pytest.approx(loss, abs=2e-3)

    # A model of few heads needs most of them.
    gained = [float(line.split()[5]) for line in rest]
    assert max(gained) > 0.1


def test_a_text_without_lines_is_refused(learned_workdir, files, capsys):
    source, reference = files
    source.write_text("")
    reference.write_text("")
    arguments = ["--source", str(source), "--reference", str(reference)]
    assert main(["heads", "--workdir", str(learned_workdir), *arguments]) == 2
    assert "expected a line of text, got none" in capsys.readouterr().err


def test_files_of_another_kind_of_model_are_refused(learned_workdir, files, capsys):
    source, _ = map(str, files)
    for options, message in (
        (["--labeled", source], "is a model of sentence pairs: leave --labeled out"),
        (["--source", source], "is a model of sentence pairs: give --source FILE and --reference"),
    ):
        assert main(["heads", "--workdir", str(learned_workdir), *options]) == 2
        assert message in capsys.readouterr().err
