"""Models that write texts of waves, against transformers, and the way back.

The fixtures are made by ``tests/fixtures/make_speech_pairs.py``.
"""

import dataclasses
import functools
import json
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy

from jaxformer import SpeechTranscriber, load_model, quantize
from jaxformer.data.sound import Sound, standardize
from jaxformer.errors import UserError
from jaxformer.inference.array_inputs import ArrayInput
from jaxformer.interop.export import export_model
from jaxformer.interop.huggingface.importer import import_huggingface

from ..fixtures.random_weights import read_arrays
from .families import imported, relative_difference, write_model

pytest.importorskip("tokenizers")

# With a decoder that an export has, too.
EXPORTED = ["wav2vec2_gpt2", "wav2vec2_bert"]
WRITERS = [*EXPORTED, "wav2vec2_roberta"]
LIMIT = 16
BOS = 2


def sounds_of(name):
    """Returns the recordings, without padding."""
    outputs = imported(name).outputs
    section: Any = imported(name).trained.config.model
    waves = outputs["waves"].astype(np.float32) / 2**15
    rows = zip(waves, outputs["lengths"], strict=True)
    return [Sound(wave[:length], section.sample_rate) for wave, length in rows]


def rows_of(name):
    """Returns the recordings as the model takes them, padded, and their lengths."""
    outputs = imported(name).outputs
    section: Any = imported(name).trained.config.model
    samples = np.zeros(outputs["waves"].shape, np.float32)
    for row, sound in zip(samples, sounds_of(name), strict=True):
        wave = standardize(sound.samples) if section.standardized else sound.samples
        row[: len(wave)] = wave
    return samples, outputs["lengths"].astype(np.int32)


@functools.cache
def apply_of(name):
    model, _ = load_model(imported(name).workdir)
    return jax.jit(model.apply)


def logits_of(name, workdir=None):
    """Returns the logits of all recordings in one batch, with padding."""
    _, own_workdir, trained, outputs = imported(name)
    tokens = trained.tokenizer.our_ids[outputs["tokens"]]
    tokens[:, 0] = BOS  # Our beginning of sentence may be a token with another role there.

    _, params = load_model(workdir or own_workdir)
    samples, lengths = rows_of(name)
    return np.asarray(apply_of(name)({"params": params}, samples, lengths, tokens))


@pytest.mark.parametrize("name", WRITERS)
def test_logits_equal_transformers(name):
    _, _, trained, outputs = imported(name)
    ours = trained.tokenizer.our_ids
    found = logits_of(name)  # [B, T, V]
    assert relative_difference(found[..., ours], outputs["logits"]) < 1e-5


def transcriber_of(name, beam_size, workdir=None):
    _, own_workdir, trained, _ = imported(name)
    search = dataclasses.replace(trained.config.search, beam_size=beam_size, max_length=LIMIT)
    return SpeechTranscriber.load(workdir or own_workdir, search=search)


@pytest.mark.parametrize(("beam_size", "output"), [(1, "greedy"), (4, "beam")])
@pytest.mark.parametrize("name", WRITERS)
def test_searches_equal_transformers(name, beam_size, output):
    _, _, trained, outputs = imported(name)
    prompt = (BOS, *trained.tokenizer.target_start)
    inputs = []
    for number, arrays in enumerate(zip(*rows_of(name), strict=True)):
        inputs.append(ArrayInput(arrays, prompt, number))
    found = transcriber_of(name, beam_size).decode_arrays(inputs)

    ours = trained.tokenizer.our_ids
    expected = [ours[row[row >= 0]].tolist() for row in outputs[output]]
    assert [n_best[0].tokens for n_best in found] == expected


@pytest.mark.parametrize("name", EXPORTED)
def test_texts_of_sound_equal_transformers(name):
    """From samples to text."""
    _, _, trained, outputs = imported(name)
    found = transcriber_of(name, 1).transcribe(sounds_of(name))

    expected = []
    for row in outputs["greedy"]:
        ids = trained.tokenizer.our_ids[row[row >= 0]]
        expected.append(trained.tokenizer.decode(ids).strip())
    assert found == expected
    assert any(expected)


def test_int8_decodes_and_is_close(tmp_path):
    name = "wav2vec2_gpt2"
    _, workdir, trained, outputs = imported(name)
    before, after = quantize(workdir, tmp_path / "int8")
    assert after < before

    found = logits_of(name, tmp_path / "int8")[..., trained.tokenizer.our_ids]
    assert np.corrcoef(found.ravel(), outputs["logits"].ravel())[0, 1] > 0.99
    texts = transcriber_of(name, 1, tmp_path / "int8").transcribe(sounds_of(name))
    assert len(texts) == 4


@pytest.mark.parametrize("name", EXPORTED)
def test_an_export_has_the_files_of_the_import(name, tmp_path):
    folder, workdir, trained, _ = imported(name)
    exported = tmp_path / "exported"
    export_model("safetensors", workdir, exported)

    found = safetensors.numpy.load_file(exported / "model.safetensors")
    expected = read_arrays(folder)
    assert found.keys() == expected.keys()
    for tensor, array in expected.items():
        np.testing.assert_array_equal(found[tensor], array, err_msg=tensor)

    for file in ("config.json", "preprocessor_config.json"):
        theirs = json.loads((folder / file).read_text())
        fields = json.loads((exported / file).read_text())
        for section in ("encoder", "decoder"):
            own = fields.pop(section, {})
            original = theirs.pop(section, {})
            for field in original.keys() & own.keys() - {"dtype", "apply_spec_augment", "n_inner"}:
                assert own[field] == original[field], field

    import_huggingface(exported, tmp_path / "again")
    assert load_model(tmp_path / "again")[0].config == trained.config.model


def test_an_export_of_a_roberta_decoder_is_a_bert_that_computes_the_same(tmp_path):
    name = "wav2vec2_roberta"
    export_model("safetensors", imported(name).workdir, tmp_path / "exported")
    values = json.loads((tmp_path / "exported" / "config.json").read_text())
    assert values["decoder"]["model_type"] == "bert"

    import_huggingface(tmp_path / "exported", tmp_path / "again")
    np.testing.assert_array_equal(logits_of(name, tmp_path / "again"), logits_of(name))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"encoder.model_type": "hubert"},
            "encoder and decoder of the types wav2vec2 and gpt2, or",
        ),
        ({"decoder.model_type": "mbart"}, "got wav2vec2 and mbart"),
        ({"encoder.add_adapter": True}, "expected encoder.add_adapter to be False"),
        ({"encoder.feat_extract_norm": "batch"}, "encoder.feat_extract_norm to be group or layer"),
        ({"encoder.registers": 4}, "jaxformer does not know encoder.registers=4"),
    ],
)
def test_other_files_are_refused_by_name(change, message, tmp_path):
    folder = write_model("wav2vec2_gpt2", tmp_path / "model")
    path = folder / "config.json"
    values = json.loads(path.read_text())
    for name, value in change.items():
        section, _, field = name.partition(".")
        values[section][field] = value
    path.write_text(json.dumps(values))

    with pytest.raises(UserError) as caught:
        import_huggingface(folder, tmp_path / "run")
    assert message in str(caught.value)
