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
    gold = lines_of(trees.with_suffix(".gld"))
    test = lines_of(trees.with_suffix(".tst"))
    lines = lines_of(parameters.with_suffix(".prm"))
    return score(gold, test, read_parameters(lines, "p"))


def assert_printed(report, name):
    """Compares table and errors with the output of the official program."""
    assert report.table().split("\n") == lines_of(PRINTED / f"{name}.out")

    errors = [f"{row.number} : {error}" for row in report.rows for error in row.errors]
    printed = lines_of(PRINTED / f"{name}.err")
    assert errors == [line for line in printed if line]


@pytest.mark.parametrize(
    ("trees", "parameters"),
    [
        ("random", "random"),
        ("random", "unlabeled"),
        ("listing", "listing"),
    ],
)
def test_the_official_program_prints_the_same(trees, parameters):
    report = report_of(PRINTED / trees, PRINTED / parameters)
    assert_printed(report, f"{trees}.{parameters}")


def test_the_official_program_prints_the_same_of_its_own_trees(package):
    for trees, parameters in [("sample", "sample"), ("bug", "COLLINS")]:
        report = report_of(package / trees, package / parameters)
        assert_printed(report, f"{trees}.{parameters}")

    report = report_of(package / "bug", PRINTED / "new")
    assert_printed(report, "bug.new")


def test_parameter_files():
    nothing = {"delete_labels": (), "delete_labels_for_length": (), "equal_labels": ()}
    assert read_parameters([], "p") == ParameterFile(**nothing)

    lines = [
        "# c",
        "",
        "DEBUG 1",
        "MAX_ERROR 3",
        "CUTOFF_LEN\t10",
        "LABELED 0 ",
        "EQ_WORD a b",
        "EQ_WORD c d",
        "QUOTE_LABEL ``",
    ]
    expected = ParameterFile(
        debug=1,
        max_error=3,
        cutoff_length=10,
        labeled=False,
        quote_labels=("``",),
        equal_words=(("a", "b"), ("c", "d")),
        **nothing,
    )
    assert read_parameters(lines, "p") == expected


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
    gold = ["(S (A a))"] * 9
    test = ["(S (A b))"] * 9
    three = ParameterFile(max_error=3)
    assert score(gold[:4], test[:4], three).all.error_sentences == 4

    words = (
        r"expected at most 3 errors, got 5 up to sentence 5: Words unmatch \(a\|b\); are these the "
        "same sentences, in the same words and with tags"
    )
    with pytest.raises(UserError, match=words):
        score(gold, test, three)


TREE = "(S (X x))"
COUNTS = "expected as many lines of test trees as of gold trees: got 1 and 2; leave a blank li"


@pytest.mark.parametrize(
    ("gold", "test", "words"),
    [
        ([TREE] * 2, [TREE], COUNTS),
        (TREE, [TREE], "gold: expected a list of texts, got one string"),
        ([TREE], TREE, "test: expected a list of texts, got one string"),
    ],
)
def test_other_arguments_are_refused(gold, test, words):
    with pytest.raises(UserError, match=words):
        score(gold, test)


def test_deep_or_blank_lines_take_linear_time():
    """Deep brackets, and white space that could make a regular expression backtrack."""
    deep = 100_000 * "(A " + "(B b)" + 100_000 * ")"
    assert score([deep], [deep]).all.matched == 100_000

    blank = "(A" + 100_000 * " " + "b c"
    assert score([blank], ["(B b)"]).all.error_sentences == 1
