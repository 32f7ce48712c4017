"""EVALB against the output of the official program."""

import pathlib
import re

import pytest

from jaxformer.errors import UserError
from jaxformer.evaluation.evalb import ParameterFile, read_parameters, score

PRINTED = pathlib.Path(__file__).parents[2] / "fixtures" / "evalb"


@pytest.fixture
def package(real_data):
    """Trees and parameters of the EVALB package."""
    return real_data("trees/evalb")


def lines_of(path):
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def report_of(trees, parameters):
    """Scores files, given without the suffixes .gld, .tst and .prm."""
    gold, test, lines = (
        lines_of(path.with_suffix(suffix))
        for path, suffix in [(trees, ".gld"), (trees, ".tst"), (parameters, ".prm")]
    )
    return score(gold, test, read_parameters(lines, "p"))


def assert_printed(report, name):
    """Compares table and errors with the output of the official program."""
    assert report.table().split("\n") == lines_of(PRINTED / f"{name}.out")
    errors = [f"{row.number} : {error}" for row in report.rows for error in row.errors]
    assert errors == [line for line in lines_of(PRINTED / f"{name}.err") if line]


@pytest.mark.parametrize(
    ("trees", "parameters"),
    [("random", "random"), ("random", "unlabeled"), ("listing", "listing")],
)
def test_the_official_program_prints_the_same(trees, parameters):
    assert_printed(report_of(PRINTED / trees, PRINTED / parameters), f"{trees}.{parameters}")


def test_the_official_program_prints_the_same_of_its_own_trees(package):
    for trees, parameters in [("sample", "sample"), ("bug", "COLLINS")]:
        assert_printed(report_of(package / trees, package / parameters), f"{trees}.{parameters}")
    assert_printed(report_of(package / "bug", PRINTED / "new"), "bug.new")


def test_parameter_files():
    empty = {"delete_labels": (), "delete_labels_for_length": (), "equal_labels": ()}
    assert read_parameters([], "p") == ParameterFile(**empty)
    lines = ["# c", "", "DEBUG 1", "MAX_ERROR 3", "CUTOFF_LEN\t10", "LABELED 0 ", "EQ_WORD a b"]
    assert read_parameters([*lines, "EQ_WORD c d", "QUOTE_LABEL ``"], "p") == ParameterFile(
        **{"debug": 1, "max_error": 3, "cutoff_length": 10, "labeled": False, **empty},
        **{"quote_labels": ("``",), "equal_words": (("a", "b"), ("c", "d"))},
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("DELETE_LABLE TOP", "p:2: expected DELETE_LABEL, got 'DELETE_LABLE TOP'"),
        ("COLOR red", "p:2: expected DEBUG, MAX_ERROR, CUTOFF_LEN, LABELED, DELETE_LABEL, "),
        ("CUTOFF_LEN forty", "p:2: expected a number after CUTOFF_LEN, got 'CUTOFF_LEN forty'"),
        ("DELETE_LABEL", "p:2: expected one label after DELETE_LABEL, got 'DELETE_LABEL'"),
        ("EQ_LABEL ADVP", "p:2: expected two words after EQ_LABEL, got 'EQ_LABEL ADVP'"),
    ],
)
def test_malformed_parameter_files_are_refused(line, words):
    with pytest.raises(UserError, match=f"^{re.escape(words)}"):
        read_parameters(["DEBUG 0", line], "p")


def test_too_many_errors_are_refused():
    """One error more than ``MAX_ERROR`` is tolerated, as in the official program."""
    gold, test = ["(S (A a))"] * 9, ["(S (A b))"] * 9
    assert score(gold[:4], test[:4], ParameterFile(max_error=3)).all.error_sentences == 4
    words = (
        r"expected at most 3 errors, got 5 up to sentence 5: Words unmatch \(a\|b\); are these the "
        "same sentences, in the same words and with tags"
    )
    with pytest.raises(UserError, match=words):
        score(gold, test, ParameterFile(max_error=3))


def test_other_arguments_are_refused():
    tree = "(S (X x))"
    length = "expected as many lines of test trees as of gold trees: got 1 and 2; leave a blank li"
    for gold, test, words in (
        ([tree] * 2, [tree], length),
        (tree, [tree], "gold: expected a list of texts, got one string"),
        ([tree], tree, "test: expected a list of texts, got one string"),
    ):
        with pytest.raises(UserError, match=words):
            score(gold, test)


def test_deep_or_blank_lines_take_linear_time():
    """Deep brackets, and white space that could make a regular expression backtrack."""
    deep = 100_000 * "(A " + "(B b)" + 100_000 * ")"
    assert score([deep], [deep]).all.matched == 100_000
    assert score(["(A" + 100_000 * " " + "b c"], ["(B b)"]).all.error_sentences == 1
