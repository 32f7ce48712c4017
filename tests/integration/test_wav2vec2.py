"""Wav2Vec 2.0 as in transformers: letters, padding, both names of weight norm, and what is refused.

``tests/fixtures/make_wav2vec2.py`` makes the fixtures.
"""

import functools
import json

import jax
import numpy as np
import pytest
import safetensors.numpy

from jaxformer.data.sound import standardize
from jaxformer.data.speech import pad_sounds
from jaxformer.errors import UserError
from jaxformer.inference.weights import TrainedModel
from jaxformer.interop.export import export_model
from jaxformer.interop.huggingface.importer import import_huggingface
from jaxformer.models.wav2vec2 import Wav2Vec2
from jaxformer.tasks.speech.pretraining_task import contrast_sums

from ..runs import contents
from .families import imported, relative_difference, write_model

NAMES = ("wav2vec2", "wav2vec2_wide", "wav2vec2_stable", "wav2vec2_stable_small")
PRETRAINING = "wav2vec2_pretraining"
TRANSCRIPTS = ["AB A", "BCC", "D"]


@functools.partial(jax.jit, static_argnums=0)
def apply(config, params, samples, lengths):
    return Wav2Vec2(config).apply({"params": params}, samples, lengths)


def inputs_of(name, with_lengths=True):
    """Returns the recordings of a fixture, in the rows of a batch as the model takes them.

    Without lengths, all rows are recordings that end with silence.
    """
    family = imported(name)
    waves = family.outputs["waves"] / np.float32(2**15)
    given = []
    for wave, length in zip(waves, family.outputs["lengths"], strict=True):
        wave = wave[:length] if with_lengths else wave
        standardized = family.trained.config.model.standardized
        given.append(standardize(wave) if standardized else wave)
    return pad_sounds(given, len(given), waves.shape[1])


@functools.cache
def logits_of(name, with_lengths=True):
    """Returns the logits in the order of the letters in vocab.json."""
    family = imported(name)
    rows = inputs_of(name, with_lengths)
    found = apply(family.trained.config.model, family.trained.params, rows.samples, rows.lengths)
    return np.asarray(found)[..., family.trained.tokenizer.our_ids]


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_each_recording_alone(name):
    outputs = imported(name).outputs
    logits = logits_of(name)
    for row, frames in enumerate(outputs["frames"]):
        expected = outputs["logits"][row, :frames]
        assert relative_difference(logits[row, :frames], expected) < 1e-5

    config = imported(name).trained.config.model
    assert config.num_frames(outputs["lengths"]).tolist() == outputs["frames"].tolist()
    assert config.num_frames(config.shortest) == 1
    assert config.num_frames(config.shortest - 1) < 1


@pytest.mark.parametrize("name", NAMES)
def test_logits_of_a_padded_batch(name):
    """The base model takes no mask in transformers, where padding is a part of the recording."""
    outputs = imported(name).outputs
    with_mask = imported(name).trained.config.model.conv_norm == "layer"
    logits = logits_of(name, with_lengths=with_mask)

    for row, frames in enumerate(outputs["frames"]):
        end = frames if with_mask else logits.shape[1]
        expected = outputs["padded"][row, :end]
        assert relative_difference(logits[row, :end], expected) < 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_letters(name):
    family = imported(name)
    tokenizer = family.trained.tokenizer
    for text, expected in zip(TRANSCRIPTS, family.outputs["labels"], strict=True):
        ids = tokenizer.encode(text)
        assert tokenizer.their_ids[ids].tolist() == expected[expected >= 0].tolist()
        assert tokenizer.decode(ids) == text

    with pytest.raises(UserError, match=r"expected a transcript of the letters .*, got 'a' in 'a"):
        tokenizer.encode("a house")


@functools.partial(jax.jit, static_argnums=0)
def contrast(config, params, rows, masked, negatives):
    def forward(module):
        return module.contrast(rows.samples, rows.lengths, masked=masked)

    found = Wav2Vec2(config).apply({"params": params}, method=forward)
    return found, contrast_sums(found, masked, negatives, axis=None)


def test_the_contrast_of_pretraining():
    family = imported(PRETRAINING)
    outputs = family.outputs
    rows = inputs_of(PRETRAINING)
    found, sums = contrast(
        family.trained.config.model,
        family.trained.params,
        rows,
        outputs["masked"],
        outputs["negatives"],
    )
    real = np.asarray(found.real)
    for name in ("predictions", "targets"):
        own = np.asarray(getattr(found, name))[real]
        assert relative_difference(own, outputs[name][real]) < 1e-5

    assert float(sums.contrast) == pytest.approx(outputs["contrast"], rel=1e-5)
    assert float(sums.diversity) == pytest.approx(outputs["diversity"], rel=1e-5)
    assert float(sums.codes) / outputs["masked"].sum() == pytest.approx(outputs["codes"], rel=1e-5)


@pytest.mark.parametrize("name", [*NAMES, PRETRAINING])
def test_exports_are_the_same_model(name, tmp_path):
    family = imported(name)
    export_model("safetensors", family.workdir, tmp_path / "export")

    exported = safetensors.numpy.load_file(tmp_path / "export" / "model.safetensors")
    original = safetensors.numpy.load_file(family.folder / "model.safetensors")
    assert exported.keys() == original.keys()
    for tensor, array in original.items():
        np.testing.assert_array_equal(exported[tensor], array, strict=True)

    import_huggingface(tmp_path / "export", tmp_path / "run")
    assert ("tokenizer.model" in contents(family.workdir)) == (name != PRETRAINING)
    for file in {"config.json", "tokenizer.model"} & contents(family.workdir).keys():
        again = (tmp_path / "run" / file).read_bytes()
        assert again == (family.workdir / file).read_bytes()


def test_older_names_of_weight_norm(tmp_path):
    folder = write_model("wav2vec2", tmp_path / "model")
    path = folder / "model.safetensors"
    arrays = safetensors.numpy.load_file(path)
    older = {}
    for name, array in arrays.items():
        name = name.replace("parametrizations.weight.original0", "weight_g")
        older[name.replace("parametrizations.weight.original1", "weight_v")] = array
    assert older.keys() != arrays.keys()
    safetensors.numpy.save_file(older, path)

    import_huggingface(folder, tmp_path / "run")
    export_model("safetensors", tmp_path / "run", tmp_path / "export")
    exported = safetensors.numpy.load_file(tmp_path / "export" / "model.safetensors")
    for name, array in arrays.items():
        np.testing.assert_array_equal(exported[name], array)


def test_fields_of_published_files_change_nothing(tmp_path):
    """transformers 5.24 has equal logits with and without them, as of wav2vec2-base."""
    published = {
        "freeze_feat_extract_train": True,
        "hidden_dropout_prob": 0.1,
        "mask_channel_selection": "static",
        "mask_time_min_space": 1,
        "mask_time_other": 0.0,
        "mask_time_selection": "static",
        "no_mask_time_overlap": True,
        "replace_prob": 0.5,
    }
    folder = write_model("wav2vec2", tmp_path / "model")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | published))

    import_huggingface(folder, tmp_path / "run")
    found = TrainedModel.load(tmp_path / "run")
    assert found.config == imported("wav2vec2").trained.config


CHANGES = [
    ("config.json", "add_adapter", True, "expected add_adapter to be False: got True"),
    ("config.json", "adapter_attn_dim", 16, "expected adapter_attn_dim to be None: got 16"),
    ("config.json", "feat_extract_activation", "relu", "feat_extract_activation to be 'gelu'"),
    (
        "config.json",
        "feat_extract_norm",
        "batch",
        "expected feat_extract_norm to be group or layer",
    ),
    (
        "config.json",
        "architectures",
        ["Wav2Vec2ForXVector"],
        "ForPreTraining: got Wav2Vec2ForXVector",
    ),
    ("config.json", "pad_token_id", 3, "expected pad_token_id=3 to be padding, got 0"),
    ("config.json", "conv_kernel", [10, 3], "conv_kernels and model.conv_strides must have a"),
    ("config.json", "conv_kernel", "10", "model.conv_kernels must be numbers with commas between"),
    ("config.json", "conv_stride", [5, 2, "2"], "model.conv_strides must be of type int: got '2'"),
    ("config.json", "conv_dim", [8, 8, 0], "model.conv_widths must be greater than 0"),
    ("config.json", "num_conv_pos_embedding_groups", 3, "model.position_groups must divide"),
    ("config.json", "later_field", 3, "does not know later_field=3"),
    ("preprocessor_config.json", "padding_value", 1.0, "expected padding_value to be 0.0"),
    ("preprocessor_config.json", "feature_size", 80, "expected feature_size to be 1: got 80"),
    ("preprocessor_config.json", "dither", 0.1, "does not know dither=0.1"),
    ("tokenizer_config.json", "do_lower_case", True, "expected do_lower_case to be false"),
    ("tokenizer_config.json", "tokenizer_class", "Wav2Vec2PhonemeCTCTokenizer", "letters have no"),
    ("tokenizer_config.json", "target_lang", "eng", "expected target_lang to be null: got 'eng'"),
    ("tokenizer_config.json", "word_delimiter_token", "/", "vocab.json: .* a delimiter of words"),
    ("vocab.json", "ch", 8, "expected letters, got the token 'ch'"),
    ("vocab.json", "Z", 9, "expected ids below vocab_size=9, got 9 of 'Z'"),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: f"{change[1]}={change[2]}")
def test_what_is_refused(tmp_path, change):
    file, field, value, message = change
    folder = write_model("wav2vec2", tmp_path / "model")
    values = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**values, field: value}))
    with pytest.raises(UserError, match=message):
        import_huggingface(folder, tmp_path / "run")


def test_a_model_without_its_letters_is_refused(tmp_path):
    folder = write_model("wav2vec2", tmp_path / "model")
    (folder / "vocab.json").unlink()
    with pytest.raises(UserError, match=r"vocab.json: no such file; a model for CTC has its let"):
        import_huggingface(folder, tmp_path / "run")
