"""The command ``evalb``: table or JSON on standard output, errors on standard error."""

import json
import pathlib

from jaxformer.cli import main

PRINTED = pathlib.Path(__file__).parents[1] / "fixtures" / "evalb"


def evalb(capsys, *arguments):
    """Returns the exit code, the output and the messages."""
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
