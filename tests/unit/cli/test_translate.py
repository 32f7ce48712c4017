"""Columns and lines of the output cannot be mistaken, whatever a translation contains."""

import json
import types

import pytest

from jaxformer.cli.commands.translate import FormatOptions
from jaxformer.cli.text import Line, json_line
from jaxformer.inference.hypotheses import Hypothesis

FOUND = [
    Hypothesis("a ||| b", [4, 5], -0.5, -1.0),
    Hypothesis("|c|", [4], -1.0, -1.0),
]


@pytest.fixture
def translator():
    return types.SimpleNamespace(tokenizer=types.SimpleNamespace(piece="piece {}".format))


def test_lists_have_three_columns(translator):
    """Moses writes | as &#124; within words."""
    rows = FormatOptions(n_best=2).rows(translator, Line(7, "x"), FOUND)
    assert rows == [
        "6 ||| a &#124;&#124;&#124; b ||| -0.500000",
        "6 ||| |c| ||| -1.000000",
    ]


def test_an_object_is_one_line(translator):
    text = "a\tb\n\x7f\x85\u2028\u2029é"

    [row] = FormatOptions(json=True).rows(translator, Line(1, text), FOUND)
    assert row.splitlines() == [row]
    assert json.loads(row)["source"] == text
    assert json_line({"é": text}) == r'{"é": "a\tb\n\u007f\u0085\u2028\u2029é"}'
