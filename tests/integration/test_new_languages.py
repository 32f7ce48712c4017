"""New languages of a small NLLB against transformers, and on the way back.

``tests/fixtures/make_new_language.py`` makes the expected values.
"""

import dataclasses
import functools
import json
import pathlib
import tempfile

import jax
import numpy as np
import pytest

from jaxformer import Translator, load_model
from jaxformer.cli import main
from jaxformer.errors import UserError
from jaxformer.inference.weights import TrainedModel
from jaxformer.interop.export import export_model
from jaxformer.interop.huggingface.importer import import_huggingface

pytest.importorskip("tokenizers")

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures" / "huggingface"
EXPECTED = dict(np.load(FIXTURES / "new_language.npz"))
NEW = ("sah_Cyrl=eng_Latn", "tyv_Cyrl=deu_Latn")
CODES = ("sah_Cyrl", "tyv_Cyrl")
LIMIT = 12


@functools.cache
def workdir():
    path = pathlib.Path(tempfile.mkdtemp()) / "run"
    import_huggingface(FIXTURES / "nllb", path, NEW)
    return path


def test_logits_equal_transformers_with_two_more_rows():
    model, params = load_model(workdir())
    tokenizer = TrainedModel.load(workdir()).tokenizer
    sources = [[*tokenizer.encode(text), 1] for text in EXPECTED["texts"].tolist()]
    longest = max(map(len, sources))
    padded = np.array([row + [0] * (longest - len(row)) for row in sources])

    code, *words = tokenizer.encode_target(EXPECTED["target"].item())
    assert tokenizer.piece(code) == "tyv_Cyrl"
    tokens = np.array([[2, code, *words]] * len(sources))

    found = np.asarray(jax.jit(model.apply)({"params": params}, padded, tokens))
    expected = EXPECTED["logits"]
    found = found[..., tokenizer.our_ids]
    assert np.abs(found - expected).max() < 1e-5 * expected.std()


def test_translations_equal_transformers():
    search = Translator.load(workdir()).config.search
    translator = Translator.load(
        workdir(), search=dataclasses.replace(search, beam_size=4, max_length=LIMIT)
    )
    texts = EXPECTED["texts"].tolist()
    assert translator.translate(texts) == EXPECTED["translations"].tolist()
    assert translator.config.data.languages == CODES


def test_an_export_has_the_new_languages(tmp_path):
    """transformers 5.24 reads it, with the same translations (checked on 2026-11-29)."""
    export_model("safetensors", workdir(), tmp_path / "out")
    fields = json.loads((tmp_path / "out" / "config.json").read_text())
    assert fields["vocab_size"] == 97

    # They are known now.
    import_huggingface(tmp_path / "out", tmp_path / "again", CODES)
    before = TrainedModel.load(workdir())
    after = TrainedModel.load(tmp_path / "again")
    jax.tree.map(np.testing.assert_array_equal, after.params, before.params)


def test_the_first_new_language_has_a_row_that_no_token_had(tmp_path):
    import_huggingface(FIXTURES / "nllb", tmp_path / "run", ("eng_Latn", "tyv_Cyrl=deu_Latn"))
    tokenizer = TrainedModel.load(tmp_path / "run").tokenizer
    assert len(tokenizer.our_ids) == 96


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            "deu_Latn=eng_Latn",
            "expected a new language, but the model has the token deu_Latn",
        ),
        ("tyv_Cyrl=kir_Cyrl", "expected a language of the model, got 'kir_Cyrl'"),
        ("tyv_Cyrl=", "expected a language of the model, got ''"),
        ("=deu_Latn", "expected the code of a new language, such as tyv_Cyrl: got ''"),
        ("<a>=deu_Latn", "expected the code of a new language, such as tyv_Cyrl: got '<a>'"),
        ("tyv_Cyrl", "expected a language of the model, got 'tyv_Cyrl'"),
    ],
)
def test_mistakes_are_named(target, message, tmp_path):
    with pytest.raises(UserError, match=message):
        import_huggingface(FIXTURES / "nllb", tmp_path / "run", ("eng_Latn", target))


def test_m2m_100_has_no_new_languages(tmp_path):
    with pytest.raises(UserError, match="M2M-100, whose tokenizer in transformers has no other:"):
        import_huggingface(FIXTURES / "m2m100", tmp_path / "run", ("en", "tyv=de"))


def test_the_command_line_names_the_language_whose_embedding_is_copied(tmp_path, capsys):
    model = str(FIXTURES / "nllb")
    run = str(tmp_path / "run")
    languages = ["--source-language", "eng_Latn", "--target-language", "tyv_Cyrl=deu_Latn"]
    assert main(["import", "hf", model, "--workdir", run, *languages]) in (0, None)
    assert "  tyv_Cyrl is new: its embedding is a copy of deu_Latn's\n" in capsys.readouterr().out
