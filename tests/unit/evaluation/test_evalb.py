"""EVALB against the output of the official program."""

import json
import pathlib
import re

import pytest

from jaxformer.errors import UserError
from jaxformer.evaluation.evalb import COLLINS, ParameterFile, Status, read_parameters, score

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


def test_the_results_in_the_package(package):
    """The results of 1997 differ in words of invalid sentences and in the sum of crossings."""
    ours = report_of(package / "sample", package / "sample").table().split("\n")
    ours = [line for line in ours if "FMea" not in line]
    for line, old in zip(ours, lines_of(package / "sample.rsl"), strict=True):
        if re.match(r" +\d+ +\d+ +[12] ", line):
            assert re.sub("0     0     0.00$", "4     0     0.00", line) == old
        elif re.match(" +87.76", line):
            columns, old_columns = line.split(), old.split()
            # The old program printed the number of sentences without crossing brackets.
            assert (columns.pop(5), old_columns.pop(5)) == ("1", "16")
            assert columns == old_columns
        else:
            assert line == old
    ours = report_of(package / "bug", PRINTED / "new").table().split("\n")
    for line, old in zip(ours, lines_of(package / "bug.rsl-new"), strict=True):
        if re.match(" +62.83", line):
            assert line.split()[:5] + line.split()[6:] == old.split()[:5] + old.split()[6:]
        else:
            assert line.split() == old.split()
    old = lines_of(package / "bug.rsl-old")
    ours = report_of(package / "bug", package / "COLLINS").table().split("\n")
    assert ours[ours.index("-- All --") :] == old[old.index("-- All --") :]


@pytest.mark.parametrize(("n", "m"), [(1, 3), (3, 1), (2, 2)])
def test_equal_brackets_match_one_to_one(n, m):
    """See section 7.5 of EVALB's README."""
    gold, test = (k * "(NP " + "(DT the) (NN man)" + k * ")" for k in (n, m))
    figures = score([gold], [test]).all
    assert figures.precision == pytest.approx(100 * min(1, n / m))
    assert figures.recall == pytest.approx(100 * min(1, m / n))


def test_collins_is_the_default(package):
    lines = lines_of(package / "COLLINS.prm")
    assert read_parameters(lines, "COLLINS.prm") == COLLINS == ParameterFile()


def test_parameter_files():
    assert read_parameters([], "p") == ParameterFile(
        delete_labels=(), delete_labels_for_length=(), equal_labels=()
    )
    lines = ["# c", "", "DEBUG 1", "MAX_ERROR 3", "CUTOFF_LEN\t10", "LABELED 0 ", "EQ_WORD a b"]
    assert read_parameters([*lines, "EQ_WORD c d", "QUOTE_LABEL ``"], "p") == ParameterFile(
        debug=1,
        max_error=3,
        cutoff_length=10,
        labeled=False,
        delete_labels=(),
        delete_labels_for_length=(),
        quote_labels=("``",),
        equal_labels=(),
        equal_words=(("a", "b"), ("c", "d")),
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("DELETE_LABLE TOP", "p:2: expected DELETE_LABEL, got 'DELETE_LABLE TOP'"),
        ("COLOR red", "p:2: expected DEBUG, MAX_ERROR, CUTOFF_LEN, LABELED, DELETE_LABEL, "),
        ("CUTOFF_LEN forty", "p:2: expected a number after CUTOFF_LEN, got 'CUTOFF_LEN forty'"),
        ("DELETE_LABEL", "p:2: expected one label after DELETE_LABEL, got 'DELETE_LABEL'"),
        ("EQ_LABEL ADVP", "p:2: expected two words after EQ_LABEL, got 'EQ_LABEL ADVP'"),
        (f"MAX_ERROR {'9' * 5000}", "p:2: expected a number after MAX_ERROR, got"),
        ("MAX_ERROR ²", "p:2: expected a number after MAX_ERROR, got"),
        (f"MAX_ERROR {'1' * 19}", "p:2: expected a number after MAX_ERROR, got"),
    ],
)
def test_malformed_parameter_files_are_refused(line, words):
    with pytest.raises(UserError, match=f"^{re.escape(words)}"):
        read_parameters(["DEBUG 0", line], "p")


@pytest.mark.parametrize(
    ("test", "errors"),
    [
        ("(S (A a) (B b)", ("Bracketing is unbalanced (too many open bracket)",)),
        ("(S (A a) (B b)))", ("Reading sentence ())",)),
        ("(S (A a) b)", ("Reading sentence (b)", "Length unmatch (2|1)")),
        ("(S (A a) (C c))", ("Words unmatch (b|c)",)),
        ("(S (A a) (. b))", ("Length unmatch (2|1)",)),
    ],
)
def test_sentences_with_other_words_are_errors(test, errors):
    gold = "(S (A a) (B b))"
    report = score([gold, gold], [test, gold])
    assert report.rows[0].errors == errors
    assert report.rows[0].status is Status.ERROR
    assert (report.all.error_sentences, report.all.valid_sentences) == (1, 1)
    assert (report.all.matched, report.all.f1) == (1, 100)  # Words of the other sentence.


def test_a_blank_line_is_skipped():
    report = score(["(S (A a))"] * 2, ["", "(S (A a))"])
    assert [row.status for row in report.rows] == [Status.SKIPPED, Status.VALID]
    assert report.all.skipped_sentences == 1


def test_a_bracket_equal_to_a_deleted_one_is_deleted():
    """Words are deleted by their exact tag only."""
    lines = ["DELETE_LABEL X", "EQ_LABEL Y X"]
    row = score(["(S (Y (Y a)))"], ["(S (Y a))"], read_parameters(lines, "p")).rows[0]
    assert (row.matched, row.gold_brackets, row.test_brackets, row.words) == (1, 1, 1, 1)


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


def test_f1_is_zero_without_matches():
    """The table prints nan, as the official program does."""
    report = score(["(S (A a))"], ["(T (A a))"])
    assert report.all.f1 == 0
    assert "Bracketing FMeasure       =    nan" in report.table()


def test_json():
    report = report_of(PRINTED / "listing", PRINTED / "listing")
    found = json.loads(report.to_json())
    assert found["all"]["f1"] == report.all.f1
    assert found["cutoff_length"] == 8
    assert [row["matched"] for row in found["rows"]] == [row.matched for row in report.rows]


def test_deep_or_blank_lines_take_linear_time():
    """Deep brackets, and white space that could make a regular expression backtrack."""
    deep = 100_000 * "(A " + "(B b)" + 100_000 * ")"
    assert score([deep], [deep]).all.matched == 100_000
    assert score(["(A" + 100_000 * " " + "b c"], ["(B b)"]).all.error_sentences == 1


def test_only_ascii_white_space_separates():
    line = "(S (NN a\u200ab) (NN c\u00a0d))"
    assert score([line], [line]).rows[0].words == 2
