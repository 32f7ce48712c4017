"""Error messages of the import; tests/integration covers valid models."""

import pathlib
import shutil

import numpy as np
import pytest

from jaxformer.interop.marian.importer import import_marian
from jaxformer.interop.marian.marian_config import MarianConfig

from .refusals import change, refused, refused_changes, refused_files

FIXTURES = pathlib.Path(__file__).parents[2] / "fixtures" / "marian"


@pytest.fixture
def directory(tmp_path):
    return pathlib.Path(shutil.copytree(FIXTURES / "swish_tied", tmp_path / "model"))


CONFIG = [
    ({"model_type": "bart"}, "expected model_type to be 'marian': got 'bart'"),
    ({"decoder_layers": 1}, "expected decoder_layers to be the same as encoder_layers=2: got 1"),
    ({"activation_function": "gelu"}, "activation_function to be relu or .* got 'gelu'"),
    ({"static_position_embeddings": False}, "static_position_embeddings to be True: got False"),
    ({"decoder_vocab_size": 9}, "decoder_vocab_size to be vocab_size=.*one vocabulary.*: got 9"),
    ({"decoder_start_token_id": 2}, "decoder_start_token_id to be pad_token_id=.*: got 2"),
    ({"scale_embedding": 1}, "expected scale_embedding to be true or false: got 1"),
    ({"d_model": "24"}, "expected d_model to be a whole number below 1048576: got '24'"),
    ({"d_model": 26}, "model.num_heads must divide model.d_model"),
    ({"eos_token_id": [0, 1]}, r"expected eos_token_id to be a whole number.*got \[0, 1\]"),
    ({"dropout": "no"}, "expected dropout to be a number: got 'no'"),
    ({"vocab_size": 9, "decoder_vocab_size": 9}, r"vocab.json: expected the ids 0 to 8 "),
    ({"layernorm_scale": 2.0}, "config.json: jaxformer does not know layernorm_scale=2.0"),
    ({"eos_token_id": 3}, "generation_config.json: expected eos_token_id to be 3 or left out: got"),
]
SEARCH = [
    ({"do_sample": True}, "generation_config.json: expected do_sample to be False .* got True"),
    ({"repetition_penalty": 1.5}, "repetition_penalty to be 1.0 or left out: got 1.5"),
    ({"bad_words_ids": [[3]]}, r"bad_words_ids to be \[\[66\]\] or left out: got \[\[3\]\]"),
    ({"forced_decoder_ids": [[1, 7]]}, r"forced_decoder_ids to be None or .* got \[\[1, 7\]\]"),
    ({"forced_bos_token_id": 0}, "forced_bos_token_id to be None or left out: got 0"),
    ({"eos_token_id": [0, 5]}, r"eos_token_id to be 0 or left out: got \[0, 5\]"),
    ({"early_stopping": "soon"}, "search.early_stop must be one of 'proven', .*: got 'soon'"),
    ({"length_penalty": -1}, "generation_config.json: search.length_penalty must be 0 to 10"),
    ({"num_beams": "4"}, "expected num_beams to be a whole number below 1048576: got '4'"),
]
TOKENIZER = [({"separate_vocabs": True}, "one vocabulary for both sides: got separate_vocabs=True")]


def exchange_padding(ids):
    ids["<pad>"], ids["▁dog"] = ids["▁dog"], ids["<pad>"]


def rename(old, new):
    def change_ids(ids):
        ids[new] = ids.pop(old)

    return change_ids


VOCABULARY = [
    (lambda ids: ids.pop("▁dog"), r"expected the ids 0 to \d+ .*: got \d+ pieces"),
    (exchange_padding, r"<pad> .* the id 66"),
    (rename("<unk>", "<UNK>"), "expected an id for <unk>: none"),
    (rename("▁dog", "\ud800"), "expected pieces of text, got half"),
]
ENCODER = "model.encoder"
FC1 = "model.encoder.layers.0.fc1"
FC2 = "model.decoder.layers.1.fc2.bias"
SHARED = "model.shared.weight"
HEAD = "lm_head.weight"


def untie(arrays):
    arrays[HEAD] = arrays[SHARED] + 1


ARRAYS = [
    (lambda arrays: arrays.pop(FC2), rf"expected an array {FC2} of shape \(24,\): none"),
    ({f"{FC1}.weight": np.zeros((2, 2), "f4")}, rf"{FC1}.weight to have shape \(40, 24\): got"),
    ({f"{FC1}.bias": np.zeros(40, "i4")}, f"expected {FC1}.bias to be of floats: got I32"),
    ({f"{ENCODER}.x.bias": np.zeros(24, "f4")}, f"no place for {ENCODER}.x.bias$"),
    (untie, f"expected {SHARED} and {HEAD} to be the same"),
]


@pytest.mark.parametrize(
    ("file", "cases"),
    {
        "config.json": CONFIG,
        "generation_config.json": SEARCH,
        "tokenizer_config.json": TOKENIZER,
        "vocab.json": VOCABULARY,
        "model.safetensors": ARRAYS,
    }.items(),
)
def test_other_values_are_refused_by_name(directory, file, cases):
    refused_changes(import_marian, directory / file, cases)


def test_settings_of_the_search_are_found_in_both_places(directory):
    generation = directory / "generation_config.json"
    settings = {"num_beams": 6, "length_penalty": 0.5, "min_length": 3}
    change(generation, {"max_length": None, **settings})
    found = MarianConfig(directory).config(("en", "fi")).search
    assert found.beam_size == 6
    assert found.penalty == "power"
    assert found.length_penalty == 0.5
    # Their lengths count the start token, and their minimum also end-of-sentence.
    assert found.min_length == 2
    assert found.early_stop == "likely"
    assert found.ends_within == "N"
    assert found.unfinished == "end"

    change(generation, {"forced_eos_token_id": None})
    assert MarianConfig(directory).config(("en", "fi")).search.unfinished == "compete"

    more = {"early_stopping": True, "max_new_tokens": 9, "max_length": 30, "min_new_tokens": 4}
    change(generation, more)
    found = MarianConfig(directory).config(("en", "fi")).search
    assert found.early_stop == "full"
    assert found.max_length == 9
    assert found.min_length == 4

    generation.unlink()
    more = {"num_beams": 3, "max_length": 20, "activation_function": "gelu_new"}
    change(directory / "config.json", more)
    found = MarianConfig(directory).config(("en", "de"))
    assert found.model.activation == "gelu"  # the approximation with tanh
    assert found.search.beam_size == 3
    assert found.search.max_length == 19


def test_fields_of_published_models_are_accepted(directory):
    """Of opus-mt-en-de on the Hub, as transformers 3 saved it."""
    old = {
        "_num_labels": 3,
        "add_bias_logits": False,
        "classif_dropout": 0.0,
        "classifier_dropout": 0.0,
        "extra_pos_embeddings": 2,
        "gradient_checkpointing": False,
        "id2label": {"0": "LABEL_0"},
        "init_std": 0.02,
        "label2id": {"LABEL_0": 0},
        "num_hidden_layers": 6,
        "static_position_embeddings": True,
    }
    before = MarianConfig(directory).config(("en", "de"))

    change(directory / "config.json", old)
    assert MarianConfig(directory).config(("en", "de")) == before


def test_fields_that_are_not_used_are_listed(directory):
    more = {"guidance_scale": 2, "new_rule": {"a": 1}, "other": None, "suppress_tokens": []}
    change(directory / "generation_config.json", more)
    summary = import_marian(directory, directory.parent / "run")
    assert summary.endswith("; not used: guidance_scale, new_rule")


def test_missing_and_damaged_files_are_named(directory):
    (directory / "tokenizer_config.json").unlink()  # This file is optional.
    cases = [
        ("source.spm", None, "source.spm: cannot be read: No such file"),
        ("config.json", None, "config.json: no such file; expected a folder of a Marian model"),
        ("source.spm", b"x", "SentencePiece model as source"),
        ("model.safetensors", b"x", "model.safetensors: expected a safetensors file: "),
        ("vocab.json", b"[]", "vocab.json: expected a JSON object, found list"),
        ("config.json", b'{"a":' * 100_000, "config.json: expected JSON"),
        ("model.safetensors", None, "model.safetensors: no such file; expected a folder of a M"),
    ]
    refused_files(import_marian, directory, cases)

    (directory / "model.safetensors").rename(directory / "aside")
    (directory / "pytorch_model.bin").write_bytes(b"\x80\x02cposix\nsystem\n.")
    message = "the package torch, which reads|pytorch_model.bin: expected a dictionary"
    refused(import_marian, directory, message)
