"""The files of an export, as transformers loads them.

On 2026-11-28, ``tests/fixtures/confirm_exports.py`` loaded the exports of these models with
transformers 5.24: AutoTokenizer, the class of the model and, where there is one, the pipeline gave
the same texts, or probabilities within 1e-5. It kept the files of these exports in
``exports.json``. Run it again after a change of the files.
"""

import json
import pathlib

import pytest

from jaxformer.interop.export import export_model
from jaxformer.interop.huggingface.importer import import_huggingface

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures"
CONFIRMED = json.loads((FIXTURES / "exports.json").read_text())
LANGUAGES = {"huggingface/nllb": ("eng_Latn", "deu_Latn"), "huggingface/m2m100": ("en", "de")}
VOCABULARIES = {
    "huggingface/m2m100": {"sentencepiece.bpe.model", "vocab.json"},
    "huggingface/vit": set(),
}


@pytest.mark.parametrize("name", CONFIRMED)
def test_the_files_of_an_export_are_the_confirmed_ones(name, tmp_path):
    import_huggingface(FIXTURES / name, tmp_path / "run", LANGUAGES.get(name, ()))
    export_model("safetensors", tmp_path / "run", tmp_path / "out")

    vocabulary = VOCABULARIES.get(name, {"tokenizer.json"})
    expected = CONFIRMED[name]
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {"README.md", "model.safetensors", *vocabulary, *expected}

    for file, fields in expected.items():
        assert json.loads((tmp_path / "out" / file).read_text()) == fields, file


def test_the_search_of_the_workdir_is_the_search_of_the_export():
    """Of the decoders: languages force the first token, and language models have no padding."""
    searches = {}
    for name, files in CONFIRMED.items():
        if "generation_config.json" in files:
            searches[name.partition("/")[2]] = files["generation_config.json"]

    assert searches.keys() == {"gpt2", "llama", "t5", "umt5", "nllb", "m2m100"}
    for fields in searches.values():
        assert fields["num_beams"] == 4
        assert fields["length_penalty"] == 1.0
        assert fields["early_stopping"] is False
    assert "suppress_tokens" not in searches["gpt2"]
    assert "forced_bos_token_id" in searches["nllb"]
    assert "forced_bos_token_id" not in searches["t5"]
