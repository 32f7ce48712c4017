"""Numbers in the prose about a claim are in its table, except for an explicit list."""

import re

import pytest

from ...printed import DOCS, name, read

PAGES = sorted(DOCS.glob("claims_*.md"))
CONCLUSIONS = {"**What is true.**", "**实际情况。**"}
# Years, and parts of papers: they say which, not how much.
YEAR = r"(?:19|20)\d\d(?![\w.,])"
NAMES = re.compile(rf"(?<![\w.]){YEAR}|(?:[Ss]ection|[Tt]able|figure|图|表|第) [\d.]*\d")
NUMBER = re.compile(r"(?<![\w.,^-])-?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?(?!\w|\^|[.,]\d)")
# By the first claim of a section: numbers of its prose that are not in its tables, and why.
OTHERS = {
    "scaling": {"-1": "a cosine is at least this"},
    "trained_scores": {"25": "a variance by the formula of Glorot's initial values"},
    "many_heads": dict.fromkeys(["25.8", "24.9", "25.4"], "BLEU in the paper's Table 3"),
    "masked_heads": {"25": "counted in the first table", "36": "heads of the model"},
    "activations": dict.fromkeys(["0.02", "0.03"], "differences of the last column"),
    "sinusoids": {"32": "biases of T5", "113": "a distance by T5's formula"},
    "copy_distance": {"80": "places that the dilations reach; test_small_runs.py tests others"},
    "teacher_forcing": dict.fromkeys(["1", "2"], "of n (n + 1) / 2"),
    "label_smoothing": {"42": "ratio of two perplexities, 17.06 / 12.00"},
    "overfitting": {
        "30": "passes: characters of 600 steps / 10,000",
        "0.71": "difference 2.687 - 1.980",
        "0.93": "difference 2.633 - 1.703",
        "0": "the last learning rate",
    },
    "scaling_law": {"0.1": "difference 2.232 - 2.136", "256": "ratio of the sizes"},
}


def sections(page):
    """Yields the first claim of each section, the text of its tables, and its conclusion."""
    for section in re.split(r"^## ", read(page), flags=re.MULTILINE)[1:]:
        tables = re.findall(r"<!-- generated: claim_(\w+) -->(.*?)<!-- end -->", section, re.DOTALL)
        if tables:
            [conclusion] = [mark for mark in CONCLUSIONS if mark in section]
            prose = re.sub(r"\]\([^)\s]*\)", "]", section.partition(conclusion)[2])
            yield tables[0][0], " ".join(text for _, text in tables), prose


def missing_numbers(prose, tables):
    """Returns the numbers of a text that no number of its tables, rounded alike, is equal to."""
    known = [as_number(number) for number in NUMBER.findall(tables)]
    missing = set()
    for number in NUMBER.findall(NAMES.sub("NAME", prose)):
        # Integers must be equal: a table rounds as the prose does.
        decimals = len(number.partition(".")[2])
        error = 0.5 * 10**-decimals + 1e-9 if decimals else 0
        if not any(abs(as_number(number) - each) <= error for each in known):
            missing.add(number)
    return missing


def as_number(text):
    return float(text.replace(",", ""))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_numbers_of_conclusions_are_in_the_tables(page):
    in_chinese = page.name.endswith(".zh-CN.md")
    found = list(sections(page))
    assert found
    for claim, tables, prose in found:
        missing = missing_numbers(prose, tables)
        others = set(OTHERS.get(claim, {}))
        # Chinese has characters for some of them.
        assert missing <= others if in_chinese else missing == others, claim


def test_other_numbers_are_noticed():
    table = "| 59 (57 to 66) | 2.687 | 1,024 | 6.4e-04 |"
    prose = "Table 3 of 2017 and section 5.4: 59 % of 1,024, 2.69, 2.7, 0.0006, d_k = 2.687."
    assert missing_numbers(prose, table) == set()
    assert missing_numbers("60 %, 2.68, 1,025 and 57.5", table) == {"60", "2.68", "1,025", "57.5"}
