"""Values of the scripts of benchmarks/ that the docs quote."""

import inspect
import json
import math
import pathlib
import runpy
import sys

PROJECT = pathlib.Path(__file__).parents[3]


def test_docs_are_up_to_date():
    notebook = runpy.run_path(str(PROJECT / "benchmarks" / "translation_notebook.py"))
    source = inspect.getsource(notebook["train_ours"])
    count = notebook["count_lines"](source)

    page = (PROJECT / "docs" / "notebooks.md").read_text(encoding="utf-8")
    assert f"| lines of code, without blank lines and comments | 327 | {count} |" in page


def test_measurements_of_a_gpu_go_on_where_a_call_has_ended(tmp_path, monkeypatch):
    """A failed measurement is repeated, a finished one is not, and a long one is not begun."""
    script = runpy.run_path(str(PROJECT / "benchmarks" / "gpu.py"))
    script_globals = script["main"].__globals__
    output = tmp_path / "gpu.jsonl"
    broken = tmp_path / "broken"
    broken.touch()

    def command_of(measurement, peers):
        program = f"""
import json, pathlib, sys
if pathlib.Path({str(broken)!r}).exists() and {measurement.name!r} == "second":
    sys.exit("cut off")
print(json.dumps({{"peers": {peers!r}}}))
"""
        return [sys.executable, "-c", program]

    # The third takes more than the 30 minutes of a call.
    measurements = []
    for name, minutes in {"first": 1, "second": 1, "third": 100}.items():
        measurement = script["Measurement"](name, minutes=minutes, script="", arguments=())
        measurements.append(measurement)
    monkeypatch.setitem(script_globals, "MEASUREMENTS", measurements)
    monkeypatch.setitem(script_globals, "command_of", command_of)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--peers", "python", "--output", str(output)])

    def written():
        return [json.loads(line)["measurement"] for line in output.read_text().splitlines()]

    script["main"]()
    assert written() == ["first"]

    broken.unlink()
    script["main"]()
    assert written() == ["first", "second"]


def test_long_reviews_have_ten_sentences_with_their_label(tmp_path, monkeypatch, capsys):
    script = runpy.run_path(str(PROJECT / "benchmarks" / "long_reviews.py"))
    folder = tmp_path / "sst2"
    folder.mkdir()
    for split, name in script["FILES"].items():
        lines = [f"{label} {split}{label}.{number}\n" for label in "01" for number in range(12)]
        (folder / name).write_text("".join(lines))
    monkeypatch.setenv("JAXFORMER_DATA", str(tmp_path))
    script["main"](tmp_path / "new")

    for split, number in {"train": 2000, "valid": 500}.items():
        lines = (tmp_path / "new" / f"{split}.txt").read_text().splitlines()
        labels = []
        for line in lines:
            label, text = line.split("\t")
            sentences = text.split(" ")
            labels.append(label)
            assert len(set(sentences)) == 16
            assert sum(sentence.startswith(f"{split}{label}.") for sentence in sentences) == 10
        assert labels.count("0") == labels.count("1") == number / 2


def test_bleu_is_of_sentences_of_each_length():
    script = runpy.run_path(str(PROJECT / "benchmarks" / "bleu_by_length.py"))
    assert script["titles"]() == ["1 to 4", "5 to 6", "7 to 8", "9 to 12", "13 or more", "all"]
    assert [script["column_of"](words) for words in (1, 4, 5, 6, 7, 9, 12, 13)] == [
        *(0, 0, 1, 1, 2, 3, 3, 4)
    ]

    references = ["a b c d e f"] * 5
    translations = ["x y z u v w", *references[1:]]
    found = script["scores"](translations, references, range(5), "de")
    assert found[0] == 0
    assert all(score > 99.9 for score in found[1:5])
    assert 70 < found[5] < 85

    found = script["scores"](references[:1], references[:1], [0], "de")
    assert [math.isnan(score) for score in found] == [False, True, True, True, True, False]
