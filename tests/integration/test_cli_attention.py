"""The command ``attention``: pages and images of a model's attention weights."""

import base64
import json
import re
import types

import numpy as np
import pytest

from jaxformer.cli import main
from jaxformer.inference.attention_view import record_attention
from jaxformer.inference.translator import Translator

SENTENCE = 'two </script> hundred "&" مرحبا 🙂'


def attention(workdir, *arguments) -> int:
    return main(["attention", "--workdir", str(workdir), *map(str, arguments)])


def data_of(page: str) -> dict:
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert match is not None
    return json.loads(match[1])


def test_the_page_has_the_weights_of_every_layer_head_and_kind(tiny_workdir, tmp_path, capsys):
    output = tmp_path / "page.html"
    assert attention(tiny_workdir, SENTENCE, "--output", output, "--kind", "decoder") == 0
    assert capsys.readouterr().out.startswith(f"{output}: ")
    data = data_of(output.read_text(encoding="utf-8"))
    view = record_attention(Translator.load(tiny_workdir), SENTENCE)
    assert (data["source"], data["target"]) == (view.source, view.target)
    assert data["start"] == {"kind": "decoder", "layer": 0, "heads": [0, 1], "figure": None}
    for kind in ("encoder", "decoder", "cross"):
        _, _, weights = view.weights_of(kind)
        read = np.frombuffer(base64.b64decode(data["weights"][kind]), "<u2") / 65535
        np.testing.assert_allclose(read.reshape(weights.shape), weights, rtol=0, atol=1e-5)


def test_a_truncated_translation_is_shown(tiny_workdir, monkeypatch):
    """The translation has the maximum length and no end-of-sentence."""
    translator = Translator.load(tiny_workdir)
    tokens = [7] * translator.config.model.max_length
    cut = types.SimpleNamespace(tokens=[tokens])
    monkeypatch.setattr(Translator, "translate_ids", lambda self, sources: [cut])
    view = record_attention(translator, "two")
    assert len(view.target) == len(tokens)
    assert view.cross.shape[2] == len(tokens)


def test_the_default_output_is_a_page(tiny_workdir, tmp_path, monkeypatch):
    written = {}
    monkeypatch.setattr("jaxformer.cli.plot.write_file", written.__setitem__)
    assert attention(tiny_workdir, SENTENCE) == 0
    assert list(written) == [tiny_workdir / "attention.html"]


def test_a_notebook_shows_the_page_in_a_sandbox(tiny_workdir):
    view = record_attention(Translator.load(tiny_workdir), SENTENCE)
    frame = view._repr_html_()
    assert frame.startswith("<iframe ")
    assert 'sandbox="allow-scripts"' in frame
    assert "<script" not in frame  # Escaped within srcdoc.


@pytest.mark.parametrize("figure", ["3", "4", "5"])
def test_figures_of_the_paper(figure, tiny_workdir, tmp_path):
    for suffix, start in ((".svg", b"<?xml"), (".png", b"\x89PNG"), (".html", b"<!DOCTYPE html>")):
        output = tmp_path / f"figure{suffix}"
        assert attention(tiny_workdir, "two hundred", "--figure", figure, "--output", output) == 0
        assert output.read_bytes().startswith(start)
    assert data_of(output.read_text(encoding="utf-8"))["start"]["figure"] == int(figure)


def test_chosen_heads_and_word(tiny_workdir, tmp_path):
    source = record_attention(Translator.load(tiny_workdir), "two hundred").source
    word = source[1].replace("▁", " ").strip()
    output = tmp_path / "page.html"
    arguments = ["two hundred", "--output", output, "--heads", "2", "--figure", 3, "--word", word]
    assert attention(tiny_workdir, *arguments) == 0
    data = data_of(output.read_text(encoding="utf-8"))
    assert data["start"]["heads"] == data["figures"]["4"]["heads"] == [1]
    assert data["figures"]["3"]["token"] == 1
    # Without --figure the options select what is shown first, and do not affect the presets.
    assert attention(tiny_workdir, "two hundred", "--output", output, "--heads", "2") == 0
    data = data_of(output.read_text(encoding="utf-8"))
    assert data["start"]["heads"] == [1]
    assert data["figures"]["3"]["heads"] == [0, 1]
    assert attention(tiny_workdir, "two", "--heads", "2", "--output", tmp_path / "map.svg") == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--output", "a.jpg"], "--output: expected a name that ends in .html, .png or .svg: got"),
        (["--output", "pyproject.toml/a.png"], "pyproject.toml: expected a folder, found a file"),
        (["--heads", "3"], "--heads must be from 1 to 2: got 3"),
        (["--heads", "0"], "--heads must be from 1 to 2: got 0"),
        (["--heads", "1-2"], "argument --heads: expected numbers such as 1 or 1,3: got '1-2'"),
        (["--layer", "2"], "--layer must be from 1 to 1: got 2"),
        (["--figure", "6"], "argument --figure: invalid choice: 6"),
        (["--figure", "3", "--kind", "cross"], "--figure shows encoder self-attention: got --kind"),
        (["--word", "two"], "--word is the word of a figure: give --figure 3 or --figure 4, too"),
        (["--word", "two", "--figure", "5"], "--word is the word of a figure: give --figure 3 or"),
        (["--figure", "3", "--word", "xyz"], "--word: expected one of the tokens t"),
    ],
)
def test_mistakes(arguments, words, tiny_workdir, capsys):
    assert attention(tiny_workdir, "two", *arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len([line for line in err.split("\n") if line.startswith("error: ")]) == 1
    assert words in err
