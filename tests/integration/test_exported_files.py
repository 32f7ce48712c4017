"""The files of an export, as transformers loads them.

On 2026-11-29, ``tests/fixtures/confirm_exports.py`` loaded the exports of these models with
transformers 5.24: AutoTokenizer, the class of the model and, where there is one, the pipeline gave
the same texts, probabilities within 1e-5, or logits within 1e-4; the code in each README ran. It
kept the files of these exports in ``exports.json``. Run it again after a change of the files.
"""

import json
import pathlib

import pytest

from jaxformer.inference.weights import TrainedModel
from jaxformer.interop.export import export_model
from jaxformer.interop.huggingface.importer import import_huggingface

from ..fixtures.confirm_exports import LANGUAGES, TASKS
from .families import imported

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures"
CONFIRMED = json.loads((FIXTURES / "exports.json").read_text())
# Models without a tokenizer.
PICTURES = {*TASKS["image-classification"], *TASKS["image-feature-extraction"]}
VOCABULARIES = {
    "huggingface/m2m100": {"sentencepiece.bpe.model", "vocab.json"},
    **{name: set() for name in PICTURES},
}


def run_of(name, folder):
    """Imports a model, and returns the workdir."""
    place = FIXTURES / name
    languages = LANGUAGES.get(name, ())
    if place.parent.name == "families":
        return imported(place.name, languages).workdir
    import_huggingface(place, folder / "run", languages)
    return folder / "run"


@pytest.mark.parametrize("name", CONFIRMED)
def test_the_files_of_an_export_are_the_confirmed_ones(name, tmp_path):
    export_model("safetensors", run_of(name, tmp_path), tmp_path / "out")

    vocabulary = VOCABULARIES.get(name, {"tokenizer.json"})
    expected = CONFIRMED[name]
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {"README.md", "model.safetensors", *vocabulary, *expected}

    for file, fields in expected.items():
        found = json.loads((tmp_path / "out" / file).read_text())
        assert found == fields, file
        assert json.dumps(found) == json.dumps(fields), f"{file}: in another order"


def test_the_search_of_the_workdir_is_the_search_of_the_export():
    """Of the decoders: languages force the first token, and language models have no padding."""
    searches = {}
    for name, files in CONFIRMED.items():
        if "generation_config.json" in files:
            searches[name] = files["generation_config.json"]

    decoders = ("text-generation", "text-to-text", "automatic-speech-recognition", "image-to-text")
    assert searches.keys() == {name for task in decoders for name in TASKS[task]}
    for fields in searches.values():
        assert fields["num_beams"] == 4
        assert fields["length_penalty"] == 1.0
        assert fields["early_stopping"] is False
    assert "suppress_tokens" not in searches["huggingface/gpt2"]
    assert "forced_bos_token_id" not in searches["huggingface/t5"]


@pytest.mark.parametrize(
    ("name", "start", "forced"),
    [
        ("huggingface/nllb", "</s>", "deu_Latn"),
        ("families/mbart_50", "</s>", "de_DE"),
        ("families/mbart", "de_DE", None),
        ("families/bart", "</s>", "<s>"),
        ("families/pegasus_wide", "<pad>", None),
    ],
)
def test_outputs_begin_as_their_language_or_family_says(name, start, forced, tmp_path):
    tokenizer = TrainedModel.load(run_of(name, tmp_path)).tokenizer
    pieces = json.loads(tokenizer.json)["added_tokens"]
    ids = {piece["content"]: piece["id"] for piece in pieces}

    fields = CONFIRMED[name]["generation_config.json"]
    assert fields["decoder_start_token_id"] == ids[start]
    assert fields.get("forced_bos_token_id") == ids.get(forced)
    assert CONFIRMED[name]["config.json"]["decoder_start_token_id"] == ids[start]


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("longformer_classes", 'model(**tokenizer("a house", return_tensors="pt"))'),
        ("longformer_plain", "model(**inputs, global_attention_mask=is_first.long())"),
        ("bert_choice", "model(**{name: rows[None] for name, rows in inputs.items()})"),
    ],
)
def test_a_readme_gives_a_model_the_inputs_that_it_needs(name, call, tmp_path):
    export_model("safetensors", imported(name).workdir, tmp_path / "out")
    assert f"print({call})\n" in (tmp_path / "out" / "README.md").read_text()
