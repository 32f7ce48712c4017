"""Models that write texts about pictures, against transformers, and the way back.

The fixtures are made by ``tests/fixtures/make_captions.py``.
"""

import dataclasses
import json
import shutil
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy

from jaxformer import Captioner, load_model
from jaxformer.errors import UserError
from jaxformer.inference.weights import TrainedModel
from jaxformer.interop.export import export_model
from jaxformer.interop.huggingface.importer import import_huggingface

from ..fixtures.random_weights import read_arrays
from . import pages
from .families import imported, relative_difference, write_model

pytest.importorskip("tokenizers")

# An export has the decoder of the import; instead of RoBERTa's, it has BERT's.
EXPORTED = [
    *("vit_gpt2", "vit_gpt2_wide", "vit_bert", "vit_bert_wide", "trocr", "trocr_wide"),
    *("deit_trocr", "beit_bert", "beit_trocr"),
]
WRITERS = [*EXPORTED, "vit_roberta"]
LIMIT = 16
TOKENS = ("bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id")


def logits_of(name, workdir=None):
    _, own_workdir, trained, outputs = imported(name)
    tokens = trained.tokenizer.our_ids[outputs["tokens"]]
    tokens[:, 0] = 2  # Our beginning of sentence may be a token with another role there.
    model, params = load_model(workdir or own_workdir)
    section: Any = trained.config.model
    pixels = np.asarray(section.scale_pixels(outputs["images"]))
    return np.asarray(jax.jit(model.apply)({"params": params}, pixels, tokens))


@pytest.mark.parametrize("name", WRITERS)
def test_logits_equal_transformers(name):
    _, _, trained, outputs = imported(name)
    ours = trained.tokenizer.our_ids
    found = logits_of(name)  # [B, T, V]
    assert relative_difference(found[..., ours], outputs["logits"]) < 1e-5


def captioner_of(name, beam_size):
    _, workdir, trained, _ = imported(name)
    search = dataclasses.replace(trained.config.search, beam_size=beam_size, max_length=LIMIT)
    return Captioner.load(workdir, search=search)


@pytest.mark.parametrize(("beam_size", "output"), [(1, "greedy"), (4, "beam")])
@pytest.mark.parametrize("name", WRITERS)
def test_searches_equal_transformers(name, beam_size, output):
    _, _, trained, outputs = imported(name)
    found = captioner_of(name, beam_size).hypotheses(outputs["images"])

    expected = []
    for row in outputs[output]:  # padded with -1
        ours = trained.tokenizer.our_ids[row[row >= 0]]
        expected.append(ours.tolist())
    assert [n_best[0].tokens for n_best in found] == expected


def write_published(folder):
    """Writes a TrOCR whose ids of special tokens are in the section of the decoder only."""
    write_model("trocr", folder)
    path = folder / "config.json"
    values = json.loads(path.read_text())
    ids = {name: values.pop(name) for name in TOKENS}
    values["decoder"] |= ids
    path.write_text(json.dumps(values))
    return ids


@pytest.mark.parametrize("is_in_two_files", [False, True])
def test_ids_of_special_tokens_may_be_of_the_decoder(is_in_two_files, tmp_path):
    ids = write_published(tmp_path / "model")
    if is_in_two_files:
        (tmp_path / "model" / "generation_config.json").write_text(json.dumps(ids))

    import_huggingface(tmp_path / "model", tmp_path / "run")
    found = TrainedModel.load(tmp_path / "run")
    usual = imported("trocr").trained
    assert found.config.search == usual.config.search
    np.testing.assert_array_equal(found.tokenizer.their_ids, usual.tokenizer.their_ids)


def test_settings_of_generate_may_be_of_the_decoder(tmp_path):
    write_published(tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    values = json.loads(path.read_text())
    values["decoder"] |= {"num_beams": 3, "max_length": 9, "length_penalty": 0.5}
    path.write_text(json.dumps(values))

    import_huggingface(tmp_path / "model", tmp_path / "run")
    captioner = Captioner.load(tmp_path / "run")
    found = captioner.hypotheses(imported("trocr").outputs["images"])
    their_ids = imported("trocr").trained.tokenizer.their_ids
    # What transformers 5.24 writes after the first token, without padding.
    assert [their_ids[best.tokens].tolist() for [best, *_] in found] == [
        [65, 85, 2],
        [20, 85, 21, 20, 20, 20, 20, 20],
        [2],
        [2],
    ]


@pytest.mark.parametrize("name", EXPORTED)
def test_an_export_has_the_tensors_of_the_import(name, tmp_path):
    folder, workdir, _, _ = imported(name)
    exported = tmp_path / "exported"
    export_model("safetensors", workdir, exported)

    found = safetensors.numpy.load_file(exported / "model.safetensors")
    for tensor, array in read_arrays(folder).items():
        if "pooler" in tensor:  # Its output is not used.
            continue
        # No token reads the first two rows of these positions.
        is_positions = tensor.endswith("embed_positions.weight")
        begin = 2 if is_positions else 0
        written = found.pop(tensor)
        np.testing.assert_array_equal(written[begin:], array[begin:], err_msg=tensor)
    assert not found


def test_an_export_of_a_roberta_decoder_is_a_bert_that_computes_the_same(tmp_path):
    _, workdir, _, _ = imported("vit_roberta")
    export_model("safetensors", workdir, tmp_path / "exported")
    values = json.loads((tmp_path / "exported" / "config.json").read_text())
    assert values["decoder"]["model_type"] == "bert"

    import_huggingface(tmp_path / "exported", tmp_path / "again")
    again = logits_of("vit_roberta", tmp_path / "again")
    np.testing.assert_array_equal(again, logits_of("vit_roberta"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"encoder.model_type": "swin"}, "encoder and decoder of the types vit and gpt2, or vit"),
        ({"decoder.model_type": "electra"}, "got vit and electra"),
        ({"decoder.tie_word_embeddings": False}, "expected decoder.tie_word_embeddings to be True"),
        ({"decoder.embd_pdrop": 0.5}, "expected decoder.embd_pdrop to be decoder.resid_pdrop=0.1"),
        ({"encoder.registers": 4}, "jaxformer does not know encoder.registers=4"),
        ({"decoder": None}, "got vit and None"),
    ],
)
def test_other_files_are_refused_by_name(change, message, tmp_path):
    folder = write_model("vit_gpt2", tmp_path / "model")
    path = folder / "config.json"
    values = json.loads(path.read_text())
    for name, value in change.items():
        *sections, field = name.split(".")
        fields = values
        for section in sections:
            fields = fields[section]
        fields[field] = value
    path.write_text(json.dumps(values))

    with pytest.raises(UserError) as caught:
        import_huggingface(folder, tmp_path / "run")
    assert message in str(caught.value)


def test_the_page_runs_as_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(imported("trocr").workdir, "runs/trocr")
    images = imported("trocr").outputs["images"]

    names = pages.execute("pictures_and_text.md", "Reading pictures", images=images)

    best = names["best"]
    assert len(best) == 2
    layers = 2
    heads = 4
    patches = (2, 2)
    num_tokens = len(best[0].tokens)
    assert names["weights"].shape == (layers, heads, num_tokens, *patches)
    assert capsys.readouterr().out.startswith("['")
