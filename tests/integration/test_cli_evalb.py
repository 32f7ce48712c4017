"""The command ``evalb``: table or JSON on standard output, errors on standard error."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

from jaxformer.cli import main
from jaxformer.cli.arguments import parse

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


def test_the_default_parameters_are_collins(real_data, capsys):
    package = real_data("trees/evalb")
    code, out, err = evalb(capsys, package / "bug.gld", package / "bug.tst")
    assert code == 0
    assert out == (PRINTED / "bug.COLLINS.out").read_text()
    assert err == (PRINTED / "bug.COLLINS.err").read_text()


def test_json(real_data, capsys):
    package = real_data("trees/evalb")
    files = (package / "bug.gld", package / "bug.tst")
    _, out, _ = evalb(capsys, *files, "--params", PRINTED / "new.prm", "--json")
    figures = json.loads(out)
    assert round(figures["all"]["f1"], 2) == 60.17
    assert len(figures["rows"]) == 5


@pytest.mark.parametrize(
    ("gold", "test", "params", "words"),
    [
        ("(S (A a))\n", "", None, "expected as many lines of test trees as of gold trees: got 0"),
        ("(S (A a))\n", None, None, "test: cannot be read: No such file or directory"),
        ("(S (A a))\n", "(S (A a))\n", "LABELD 1", "params:1: expected LABELED, got"),
    ],
)
def test_mistakes(gold, test, params, words, tmp_path, capsys):
    for name, content in (("gold", gold), ("test", test), ("params", params)):
        if content is not None:
            (tmp_path / name).write_text(content)
    flags = [] if params is None else ["--params", tmp_path / "params"]
    code, out, err = evalb(capsys, tmp_path / "gold", tmp_path / "test", *flags)
    assert (code, out) == (2, "")
    assert re.fullmatch(r"error: [^\n]+\n", err)
    assert words in err


def test_help_has_examples_that_are_accepted(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["evalb", "--help"])
    text = capsys.readouterr().out
    examples = re.findall(r"^  jaxformer (evalb .*)$", text, re.MULTILINE)
    assert len(examples) == 2
    for example in examples:
        parse(example.split())
    assert "--workdir" not in text


def test_it_needs_neither_jax_nor_a_model():
    files = [str(PRINTED / "listing.gld")] * 2
    code = (
        f"import sys, jaxformer.cli; jaxformer.cli.main(['evalb', *{files}])\n"
        "print([m for m in ('jax', 'sentencepiece', 'sacrebleu') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.endswith("\n[]\n")
