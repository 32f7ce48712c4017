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
from jaxformer.search import BeamSearch

SENTENCE = 'two </script> "&" 🙂'


@pytest.fixture(scope="module")
def translator(learned_workdir):
    return Translator.load(learned_workdir, search=BeamSearch(max_length=16))


@pytest.fixture(scope="module")
def view(translator):
    return record_attention(translator, SENTENCE)


@pytest.fixture
def attention(learned_workdir, view, monkeypatch):
    """Runs the command with a view that has been recorded before."""
    monkeypatch.setattr("jaxformer.inference.attention_view.record_attention", lambda *_: view)

    def run(*arguments):
        command = ["attention", "--workdir", str(learned_workdir), SENTENCE]
        return main(command + [str(argument) for argument in arguments])

    return run


def data_section(page):
    text = page.read_text(encoding="utf-8")
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    return json.loads(match[1])


def test_the_page_has_the_weights_of_every_layer_head_and_kind(
    learned_workdir, view, tmp_path, capsys
):
    output = tmp_path / "page.html"
    arguments = ["--output", str(output), "--kind", "decoder", "--max-length", "16"]
    command = ["attention", "--workdir", str(learned_workdir), SENTENCE]
    assert main([*command, *arguments]) == 0
    assert capsys.readouterr().out.startswith(f"{output}: ")

    data = data_section(output)
    assert data["source"] == view.source
    assert data["target"] == view.target
    assert data["start"] == {"kind": "decoder", "layer": 0, "heads": [0, 1, 2, 3], "figure": None}

    for kind in ("encoder", "decoder", "cross"):
        queries, keys, weights = view.weights_of(kind)
        assert weights.shape == (1, 4, len(queries), len(keys))
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)

        # The page has them as 16-bit fractions.
        content = base64.b64decode(data["weights"][kind])
        fractions = np.frombuffer(content, "<u2") / 65535
        found = fractions.reshape(weights.shape)
        np.testing.assert_allclose(found, weights, rtol=0, atol=1e-5)

    assert "".join(view.source).replace("▁", " ").startswith(" two ")
    assert np.triu(view.decoder[0, 0], 1).max() == 0


def test_a_truncated_translation_is_shown(translator, monkeypatch):
    tokens = [7] * translator.config.model.max_length
    cut = types.SimpleNamespace(tokens=[tokens])
    monkeypatch.setattr(Translator, "translate_ids", lambda *_, **__: [cut])

    view = record_attention(translator, "two")
    assert len(view.target) == len(tokens)
    assert view.cross.shape[2] == len(tokens)
    assert re.fullmatch(r"<AttentionView: 'two' -> '.*', \d+ layers of \d+ heads>", repr(view))


def test_figures_of_the_paper(attention, tmp_path):
    for figure, suffix, start in (
        (3, "svg", b"<?xml"),
        (4, "png", b"\x89PNG"),
        (5, "html", b"<!D"),
    ):
        output = tmp_path / f"figure.{suffix}"
        assert attention("--figure", figure, "--output", output) == 0
        assert output.read_bytes().startswith(start)
    assert data_section(output)["start"]["figure"] == 5


def test_chosen_heads_and_word(attention, view, tmp_path):
    word = view.source[1].replace("▁", " ").strip()
    output = tmp_path / "page.html"
    assert attention("--output", output, "--heads", 2, "--figure", 3, "--word", word) == 0

    data = data_section(output)
    assert data["start"]["heads"] == [1]
    assert data["figures"]["4"]["heads"] == [1]
    assert data["figures"]["3"]["token"] == 1


def test_a_page_without_a_name_is_written_to_the_workdir(attention, learned_workdir, monkeypatch):
    written = {}
    monkeypatch.setattr("jaxformer.cli.commands.plot.write_file", written.__setitem__)
    assert attention() == 0
    assert list(written) == [learned_workdir / "attention.html"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--output", "a.jpg"], "--output: expected a name that ends in .html, .png or .svg: got"),
        (["--heads", "5"], "--heads must be from 1 to 4: got 5"),
        (["--layer", "2"], "--layer must be from 1 to 1: got 2"),
        (["--figure", "3", "--kind", "cross"], "--figure shows self-attention: got --kind cross"),
        (["--word", "two", "--figure", "5"], "--word is the word of a figure: give --figure 3 or"),
        (["--annotate", "--figure", "3"], "--annotate is for attention maps, images without --fig"),
        (["--mean-heads"], "--mean-heads is for attention maps, images without --figure: "),
        (["--figure", "3", "--word", "xyz"], "--word: expected one of the tokens t"),
    ],
)
def test_mistakes(arguments, words, attention, capsys):
    assert attention(*arguments) == 2
    assert f"error: {words}" in capsys.readouterr().err
