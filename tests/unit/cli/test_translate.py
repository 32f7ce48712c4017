"""Columns and lines of the output cannot be mistaken, whatever a translation contains."""

import json
import types

import pytest

from jaxformer.cli.commands.translate import FormatOptions, Translated
from jaxformer.cli.text import Line, json_line
from jaxformer.inference.hypotheses import Hypothesis

FOUND = [
    Hypothesis("a ||| b", [4, 5], -0.5, -1.0),
    Hypothesis("|c|", [4], -1.0, -1.0),
]


@pytest.fixture
def translated():
    """A function of a line, which is one sentence, to its translations."""
    translator = types.SimpleNamespace(tokenizer=types.SimpleNamespace(piece="piece {}".format))

    def translate(line):
        return Translated(translator, line, False, [line.text], sources=[[4]], found=[FOUND])

    return translate


def test_lists_have_three_columns(translated):
    """Moses writes | as &#124; within words."""
    rows = FormatOptions(n_best=2).rows(translated(Line(7, "x")))
    assert rows == [
        "6 ||| a &#124;&#124;&#124; b ||| -0.500000",
        "6 ||| |c| ||| -1.000000",
    ]


def test_an_object_is_one_line(translated):
    text = "a\tb\n\x7f\x85\u2028\u2029é"

    [row] = FormatOptions(json=True).rows(translated(Line(1, text)))
    assert row.splitlines() == [row]
    assert json.loads(row)["source"] == text
    assert json_line({"é": text}) == r'{"é": "a\tb\n\u007f\u0085\u2028\u2029é"}'
