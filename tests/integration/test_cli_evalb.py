"""The command ``evalb``: table or JSON on standard output, errors on standard error."""

import json
import pathlib
import re

import pytest

from jaxformer.cli import main

PRINTED = pathlib.Path(__file__).parents[1] / "fixtures" / "evalb"


def evalb(capsys, *arguments):
    code = main(["evalb", *map(str, arguments)])
    return code, *capsys.readouterr()


def test_the_table_equals_the_official_programs(capsys):
    files = (PRINTED / "random.gld", PRINTED / "random.tst")
    code, out, err = evalb(capsys, *files, "--params", PRINTED / "random.prm")
    assert code == 0
    assert out == (PRINTED / "random.random.out").read_text()
    assert err == (PRINTED / "random.random.err").read_text()


def test_the_default_parameters_are_collins_and_json_has_all_figures(real_data, capsys):
    package = real_data("trees/evalb")
    files = (package / "bug.gld", package / "bug.tst")
    code, out, err = evalb(capsys, *files)
    assert code == 0
    assert out == (PRINTED / "bug.COLLINS.out").read_text()
    assert err == (PRINTED / "bug.COLLINS.err").read_text()
    _, out, _ = evalb(capsys, *files, "--params", PRINTED / "new.prm", "--json")
    figures = json.loads(out)
    assert round(figures["all"]["f1"], 2) == 60.17
    assert len(figures["rows"]) == 5


@pytest.mark.parametrize(
    ("test", "params", "words"),
    [
        ("", "", "expected as many lines of test trees as of gold trees: got 0"),
        ("(S (A a))\n", "LABELD 1", "params:1: expected LABELED, got"),
    ],
)
def test_mistakes(test, params, words, tmp_path, capsys):
    for name, content in (("gold", "(S (A a))\n"), ("test", test), ("params", params)):
        (tmp_path / name).write_text(content)
    flags = ["--params", tmp_path / "params"] if params else []
    code, out, err = evalb(capsys, tmp_path / "gold", tmp_path / "test", *flags)
    assert (code, out) == (2, "")
    assert re.fullmatch(r"error: [^\n]+\n", err)
    assert words in err
