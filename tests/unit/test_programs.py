"""Files that compile too many programs are named, except in the nightly profile."""

from ..programs import TABLE, exceeded_budgets

OTHER = "tests/unit/test_other.py"


def test_only_the_ordinary_profile_has_budgets():
    file, budget = next(iter(TABLE["files"].items()))
    counts = {file: budget + 1, OTHER: TABLE["default"]}
    assert exceeded_budgets(counts, nightly=False) == {file: budget}
    assert exceeded_budgets(counts, nightly=True) == {}

    counts = {file: budget, OTHER: TABLE["default"] + 1}
    assert exceeded_budgets(counts, nightly=False) == {OTHER: TABLE["default"]}
