"""The command ``compare`` against sacreBLEU's own command."""

import json
import re
import shutil
import subprocess
import sys

import pytest

from jaxformer.cli import main

SPEAKERS = ["Bert", "Anna", "Anna"]
LINES = [f"Heute ist der {n}. Tag im T-Shirt , sagt {SPEAKERS[n % 3]} ." for n in range(30)]


def with_wrong_words(line, number, every):
    """Returns a line with one of so many words wrong, beginning at another one in each line."""
    words = line.split()
    for place in range(len(words)):
        if (place + number) % every == 0:
            words[place] = "falsch"
    return " ".join(words)


@pytest.fixture
def files(tmp_path):
    """A reference, and two systems with every fourth or every fifth word wrong."""
    four = []
    five = []
    for number, line in enumerate(LINES):
        four.append(with_wrong_words(line, number, 4))
        five.append(with_wrong_words(line, number, 5))

    paths = []
    for name, lines in {"ref": LINES, "four": four, "five": five}.items():
        path = tmp_path / f"{name}.de"
        content = "".join(f"{line}\n" for line in lines)
        path.write_text(content, "utf-8")
        paths.append(str(path))
    return paths


def compare(capsys, reference, *arguments):
    words = map(str, arguments)
    code = main(["compare", "--reference", reference, *words])
    return code, *capsys.readouterr()


def sacrebleu(test, reference, *systems):
    """Returns the numbers of sacreBLEU's table, BLEU then chrF, with a row per system."""
    command = [sys.executable, "-m", "sacrebleu", reference, "-i", *systems]
    options = ["-m", "bleu", "chrf", f"--paired-{test}", "-f", "text", "-w", "6"]
    result = subprocess.run(
        [*command, *options],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={"PYTHONIOENCODING": "utf-8"},
        check=True,
    )

    rows = []
    for line in result.stdout.split("\n"):
        if line.startswith("│"):
            _, _, bleu, chrf, *_ = line.split("│")
            rows.append([numbers_in(bleu), numbers_in(chrf)])
    return rows[1:]


def numbers_in(text):
    return [float(number) for number in re.findall(r"\d+\.\d+", text)]


def test_figures_equal_those_that_sacrebleu_prints(files, capsys):
    code, out, _ = compare(capsys, *files, "--json")
    assert code == 0
    comparisons = json.loads(out)["comparisons"]
    ours = {each["metric"]: each["systems"] for each in comparisons}
    bootstrap = sacrebleu("bs", *files)
    randomized = sacrebleu("ar", *files)

    for column, metric in enumerate(("sacreBLEU", "chrF")):
        first, second = ours[metric]
        for system, row in ((first, bootstrap[0]), (second, bootstrap[1])):
            figures = [system["score"], system["mean"], system["interval"]]
            assert figures == pytest.approx(row[column], abs=6e-7)

        by_bootstrap = round(second["p_bootstrap"], 4)
        assert [by_bootstrap] == bootstrap[2][column]
        by_randomization = round(second["p_randomization"], 4)
        assert [by_randomization] == randomized[2][column]


def test_equal_systems_and_lines_without_four_words(files, tmp_path, capsys):
    copy = shutil.copy(files[1], tmp_path / "copy.de")
    code, out, _ = compare(capsys, files[0], files[1], copy, "--json")
    assert code == 0
    for comparison in json.loads(out)["comparisons"]:
        first, second = comparison["systems"]
        assert first["p_bootstrap"] is None
        assert first["p_randomization"] is None
        assert second["p_bootstrap"] == 1.0
        assert second["p_randomization"] == 1.0

    one = tmp_path / "one.de"
    two = tmp_path / "two.de"
    for path in (one, two):
        path.write_text("ein Hund\n" * 3)
    code, out, _ = compare(capsys, str(one), two)
    assert code == 0
    assert out.count(f"{two}     n/a  (no line has 4 words)\n") == 4
    assert re.search(r"chrF: .*\n.*two.de  100.00  100.00 \+- 0.00\n", out)


def test_table_and_language(files, tmp_path, capsys):
    code, out, _ = compare(capsys, *files)
    assert code == 0
    assert out.startswith("lines: 30, target language: de\n")

    reference = str(shutil.copy(files[0], tmp_path / "ref.txt"))
    code, out, _ = compare(capsys, reference, files[1], "--language", "fr")
    assert code == 0
    assert "tokenizer.perl -l fr" in out


def test_mistakes(files, tmp_path, capsys):
    reference, first, second = files
    short = tmp_path / "short.de"
    short.write_text("eins\n")
    unnamed = tmp_path / "ref.txt"
    unnamed.write_text("eins\n")

    for arguments, words in (
        ((reference, first, short), "got 1 translations and 30 reference lines"),
        ((reference, first, second, first), "four.de is given twice; give each system once"),
        ((str(unnamed), first), "--language CODE is needed, since"),
    ):
        code, out, err = compare(capsys, *arguments)
        assert code == 2
        assert out == ""
        assert re.fullmatch(r"error: [^\n]+\n", err)
        assert words in err
