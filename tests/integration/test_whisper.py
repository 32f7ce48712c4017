"""Whisper against transformers: logits, searches, languages, texts of sound, the way back.

The fixtures are made by ``tests/fixtures/make_whisper.py``.
"""

import dataclasses
import functools
import json
import shutil
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy
from scipy.io import wavfile

from jaxformer import Config, TrainingConfig, load_model, quantize, train
from jaxformer.cli import main
from jaxformer.data.sound import Sound
from jaxformer.data.transcripts import TranscriptsConfig
from jaxformer.errors import UserError
from jaxformer.experiment import make_task
from jaxformer.inference.array_inputs import ArrayInput
from jaxformer.inference.weights import TrainedModel
from jaxformer.interop.export import export_model
from jaxformer.interop.huggingface.importer import import_huggingface
from jaxformer.nn.log_mel import log_mel
from jaxformer.runs.workdir import Workdir
from jaxformer.tasks.transcription.speech_transcriber import (
    SpeechTranscriber,
    split_at_quiet_places,
)
from jaxformer.training.placement import BatchShards

from ..fixtures.random_weights import random_arrays, read_arrays
from ..fixtures.waves import RATE, random_wave
from . import pages
from .families import imported, relative_difference, write_model

pytest.importorskip("tokenizers")

NAMES = ["whisper", "whisper_english"]
LIMIT = 16
EOS = 1
# As in the script.
MIXED = [
    "the cat, 12.5% of B\u00fccher -- \u732b\u5750\u5728 \U0001f600\n\tdog's",
    "  two <|de|> spaces<|endoftext|> <|0.40|> <|nospeech|>",
    "",
]


def sound_of(samples):
    return Sound(samples, RATE)


def random_sound(seconds, seed):
    return sound_of(random_wave(seconds, seed))


def features_of(name):
    family = imported(name)
    model: Any = family.trained.config.model
    seed = json.loads((family.folder / "tensors.json").read_text())["seed"]
    shape = [8, *model.features_shape]
    return random_arrays({"features": shape}, seed)["features"]


def language_of(name):
    return "de" if imported(name).trained.tokenizer.spoken else None


@functools.cache
def transcriber(name: str, beam_size=4, max_length=LIMIT):
    family = imported(name)
    search = family.trained.config.search
    search = dataclasses.replace(search, beam_size=beam_size, max_length=max_length)
    return SpeechTranscriber.load(family.workdir, search=search)


@functools.cache
def apply_of(name):
    model, _ = load_model(imported(name).workdir)
    return jax.jit(model.apply)


def logits_of(name, workdir=None):
    _, own_workdir, trained, outputs = imported(name)
    tokens = trained.tokenizer.our_ids[outputs["tokens"]]
    _, params = load_model(workdir or own_workdir)
    return np.asarray(apply_of(name)({"params": params}, features_of(name)[:2], tokens))


@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_transformers(name):
    _, _, trained, outputs = imported(name)
    ours = trained.tokenizer.our_ids
    found = logits_of(name)  # [B, T, V]
    assert relative_difference(found[..., ours], outputs["logits"]) < 1e-5

    absent = sorted(set(range(found.shape[-1])) - set(ours.tolist()))
    assert len(absent) == len(trained.tokenizer.absent.split())
    assert (found[..., absent] < -9000).all()


@pytest.mark.parametrize("name", NAMES)
def test_tokens_equal_transformers(name):
    """With the prompt and the end that its tokenizer adds."""
    _, _, trained, outputs = imported(name)
    tokenizer = trained.tokenizer
    found = []
    for text in MIXED:
        found += [*tokenizer.their_ids[tokenizer.encode_prompt(text)], -1]
    assert found == outputs["text_ids"].tolist()

    # A text of a target has neither.
    [ids] = tokenizer.encode_target_batch(MIXED[:1])
    assert tokenizer.decode(ids) == MIXED[0]
    assert tokenizer.decode(tokenizer.encode("the<|0.40|><|de|> cat")) == "the cat"


def searched(name, beam_size, task="transcribe"):
    """Returns the best outputs for all features, without their end, in the ids of transformers."""
    own: Any = transcriber(name, beam_size)
    prompt = own.tokenizer.prompt(language_of(name), task)
    inputs = [ArrayInput((row,), prompt, n) for n, row in enumerate(features_of(name))]
    found = own.decode_arrays(inputs, n_best=1, constraints=own.constraints)

    rows = np.full((len(inputs), LIMIT), -1)
    for row, [best] in zip(rows, found, strict=True):
        kept = [token for token in best.tokens if token != EOS]
        row[: len(kept)] = own.tokenizer.their_ids[kept]
    return rows


@pytest.mark.parametrize(
    ("name", "beam_size", "task", "output"),
    [
        ("whisper", 1, "transcribe", "greedy"),
        ("whisper", 4, "transcribe", "beam"),
        ("whisper", 4, "translate", "translated"),
        ("whisper_english", 1, "transcribe", "greedy"),
        ("whisper_english", 4, "transcribe", "beam"),
    ],
)
def test_searches_equal_transformers(name, beam_size, task, output):
    """With tokens that are suppressed, always or as the first."""
    expected = imported(name).outputs[output]
    np.testing.assert_array_equal(searched(name, beam_size, task), expected)


def test_detected_languages_equal_transformers():
    own: Any = transcriber("whisper")
    expected = own.tokenizer.our_ids[imported("whisper").outputs["languages"]].tolist()
    found = own._detect_languages([(features,) for features in features_of("whisper")])
    assert [own.tokenizer.spoken[code] for code in found] == expected
    assert len(set(expected)) > 1

    with pytest.raises(UserError, match="expected a model of several languages"):
        transcriber("whisper_english").detect_languages([random_sound(1, seed=0)])


@pytest.mark.parametrize("name", NAMES)
def test_texts_of_sound_equal_transformers(name):
    """From samples to text."""
    sound = random_sound(0.8, seed=3)
    [found] = transcriber(name).transcribe([sound], language=language_of(name))
    assert found == str(imported(name).outputs["spoken"]).strip()


def test_the_command_transcribes_files(tmp_path, capsys):
    _, workdir, _, outputs = imported("whisper")
    samples = random_wave(0.8, seed=3)
    wavfile.write(tmp_path / "a.wav", RATE, samples)
    options = ["--workdir", str(workdir), str(tmp_path / "a.wav"), "--language"]
    assert main(["transcribe", *options, "de"]) == 0
    out, _ = capsys.readouterr()
    # The limit of the fixture is lower.
    assert out.strip().startswith(str(outputs["spoken"]).strip()[:LIMIT])

    assert main(["transcribe", *options, "de", "--task", "guess"]) == 2
    assert "expected the task transcribe or translate: got 'guess'" in capsys.readouterr().err


def test_long_recordings_are_read_in_windows():
    own = transcriber("whisper")
    wave = random_wave(2.7, seed=4)
    parts = list(split_at_quiet_places(wave, own.window, RATE))
    assert len(parts) in (3, 4)
    assert all(len(part) <= own.window for part in parts)
    np.testing.assert_array_equal(np.concatenate(parts), wave)

    short = random_sound(0.5, seed=5)
    finished = []
    found = own.transcribe([sound_of(wave), short], language="de", report=finished.append)
    assert sum(finished) == 2
    texts = own.transcribe([*map(sound_of, parts), short], language="de")
    # Texts of parts begin with the space between them, if they have one.
    assert found[0].replace(" ", "") == "".join(texts[:-1]).replace(" ", "")
    assert found[1] == texts[-1]


def test_cuts_are_in_silence():
    """In the last fifth of the window, the pause before is too early."""
    wave = np.ones(50_000, np.float32)
    wave[3000:6000] = 0
    wave[14_000:16_000] = 0
    first, *others = split_at_quiet_places(wave, 16_000, RATE)
    assert 14_000 < len(first) < 16_000
    assert sum(map(len, others)) == 50_000 - len(first)


def test_the_language_is_detected_unless_it_is_given():
    own = transcriber("whisper")
    sounds = [random_sound(0.7, seed=seed) for seed in range(4)]
    detected = own.detect_languages(sounds)
    found = own.transcribe(sounds)
    expected = []
    for sound, language in zip(sounds, detected, strict=True):
        expected += own.transcribe([sound], language=language)
    assert found == expected


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("whisper", {"language": "fr"}, "expected a language of the model, got 'fr'; choose from"),
        ("whisper", {"task": "summarize"}, "expected the task transcribe or translate"),
        ("whisper_english", {"language": "de"}, "since the model is of English: got de and"),
        ("whisper_english", {"task": "translate"}, "of English: got en and translate"),
    ],
)
def test_other_languages_and_tasks_are_refused(name, options, message):
    with pytest.raises(UserError, match=message):
        transcriber(name).transcribe([random_sound(0.7, seed=0)], **options)


@pytest.mark.parametrize("name", NAMES)
def test_an_export_is_the_imported_model_bit_for_bit(name, tmp_path):
    folder, workdir, trained, _ = imported(name)
    out = tmp_path / "out"
    export_model("safetensors", workdir, out)

    found = safetensors.numpy.load_file(out / "model.safetensors")
    expected = read_arrays(folder)
    assert found.keys() == expected.keys()
    for tensor, array in expected.items():
        np.testing.assert_array_equal(found[tensor], array, strict=True)

    # The files say the same as the original ones.
    for file in ("config.json", "generation_config.json", "preprocessor_config.json"):
        theirs = json.loads((folder / file).read_text())
        fields = json.loads((out / file).read_text())
        for field in theirs.keys() & fields.keys() - {"max_length", "dtype"}:
            assert fields[field] == theirs[field], field
    generation = json.loads((out / "generation_config.json").read_text())
    assert {"suppress_tokens", "begin_suppress_tokens", "is_multilingual"} < generation.keys()

    import_huggingface(out, tmp_path / "again")
    again = TrainedModel.load(tmp_path / "again")
    assert again.config.model == trained.config.model
    assert again.tokenizer.sha256 == trained.tokenizer.sha256
    jax.tree.map(np.testing.assert_array_equal, again.params, trained.params)


@pytest.mark.parametrize(
    ("file", "fields", "message"),
    [
        ("preprocessor_config.json", {"hop_length": 80}, "expected hop_length to be 160: got 80"),
        ("preprocessor_config.json", {"feature_size": 128}, "expected feature_size to be num_mel"),
        ("preprocessor_config.json", {"chunk_length": 30}, "expected chunk_length to be 1: got"),
        ("preprocessor_config.json", {"filters": 1}, "jaxformer does not know filters=1"),
        ("config.json", {"scale_embedding": True}, "expected scale_embedding to be False"),
        ("config.json", {"decoder_ffn_dim": 25}, "expected decoder_ffn_dim to be encoder_ffn"),
        ("config.json", {"adapter_size": 8}, "jaxformer does not know adapter_size=8"),
        ("generation_config.json", {"lang_to_id": {"<|de|>": 9999}}, "the id 9999 is not below"),
        ("generation_config.json", {"no_timestamps_token_id": None}, "generation_config.json of"),
    ],
)
def test_other_models_are_refused(file, fields, message, tmp_path):
    folder = write_model("whisper", tmp_path / "model")
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    with pytest.raises(UserError, match=message):
        import_huggingface(folder, tmp_path / "run")


@pytest.mark.parametrize(
    ("generation", "language"),
    [
        ({}, None),
        ({"forced_decoder_ids": [[1, 304], [2, 306]]}, "de"),
        ({"language": "<|zh|>"}, "zh"),
    ],
)
def test_a_model_may_be_set_to_a_language(generation, language, tmp_path):
    tokenizer = imported("whisper").trained.tokenizer
    own = type(tokenizer).of(tokenizer, tokenizer.generation | generation)
    assert own.default_language == language


def test_int8_decodes_and_is_close(tmp_path):
    _, workdir, trained, outputs = imported("whisper")
    int8 = tmp_path / "int8"
    before, after = quantize(workdir, int8)
    assert after < before

    found = logits_of("whisper", int8)[..., trained.tokenizer.our_ids]
    assert np.corrcoef(found.ravel(), outputs["logits"].ravel())[0, 1] > 0.99

    sound = random_sound(0.8, seed=3)
    search = dataclasses.replace(trained.config.search, beam_size=1, max_length=4)
    texts = SpeechTranscriber.load(int8, search=search).transcribe([sound], language="de")
    assert len(texts) == 1


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    """Returns a file of eight short recordings with texts."""
    path = tmp_path_factory.mktemp("recordings") / "train.npz"
    waves = [random_wave(0.5, seed) for seed in range(8)]
    np.savez(
        path,
        samples=np.concatenate(waves),
        lengths=[len(wave) for wave in waves],
        rate=RATE,
        transcripts=[f"the cat {number}" for number in range(8)],
    )
    return str(path)


def fine_tuning(path, **data):
    """Returns a config that begins with the model of many languages."""
    family = imported("whisper")
    section = TranscriptsConfig(
        train=path,
        valid=path,
        seconds_per_batch=8.0,
        max_seconds=1.0,
        max_length=36,
        **data,
    )
    training = TrainingConfig(
        steps=1,
        init_from=str(family.workdir),
        schedule="constant",
        label_smoothing=0.0,
    )
    return Config(model=family.trained.config.model, data=section, training=training)


def test_fine_tuning_begins_with_the_model_and_prompts(recordings, tmp_path):
    config = fine_tuning(recordings, language="de", task="translate")
    task: Any = make_task(config, Workdir(tmp_path / "task"))
    batch = next(iter(task.batches(0, BatchShards(1, (0,), 1))))
    tokenizer = task.tokenizer

    assert batch.samples.shape == (8, RATE)
    pieces = [tokenizer.piece(token) for token in batch.tgt_in[0, :4]]
    assert pieces == ["<s>", "<|de|>", "<|translate|>", "<|notimestamps|>"]
    # The prompt has no loss; the text and its end have.
    first, *_, last = np.flatnonzero(batch.counted[0])
    assert first == 3
    assert batch.tgt_out[0, last] == EOS
    number, *_ = task.example_ids(0)
    assert tokenizer.decode(batch.tgt_out[0, first:last]) == f"the cat {number}"

    # The loss of the first step is the imported model's.
    sums = []
    state = train(config, tmp_path / "run", hooks=[lambda step, state, each: sums.append(each)])
    before = imported("whisper").trained.params
    features = jax.jit(log_mel, static_argnums=1)(batch.samples, 80)
    logits = np.asarray(apply_of("whisper")({"params": before}, features, batch.tgt_in))
    log_probs = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    chosen = np.take_along_axis(log_probs, batch.tgt_out[..., None], axis=-1)[..., 0]
    assert float(sums[0]["loss"]) == pytest.approx(-chosen[batch.counted].sum(), rel=1e-4)

    # All parameters learn, except the sinusoids.
    after = jax.device_get(state.params)
    np.testing.assert_array_equal(after["src_positions"], before["src_positions"])
    pairs = zip(jax.tree.leaves(after), jax.tree.leaves(before), strict=True)
    moved = [np.abs(a - b).max() for a, b in pairs]
    assert sum(largest > 0 for largest in moved) == len(moved) - 1
    assert max(moved) < 0.1

    # The run transcribes as it was trained.
    tuned: Any = SpeechTranscriber.load(tmp_path / "run")
    assert tuned.config.data.language == "de"
    sounds = [random_sound(0.5, seed=0)]
    explicit = tuned.transcribe(sounds, language="de", task="translate")
    assert tuned.transcribe(sounds) == explicit


def test_training_needs_the_language_of_the_recordings(recordings, tmp_path):
    with pytest.raises(UserError, match=r"data.language: expected the code of the language of"):
        make_task(fine_tuning(recordings), Workdir(tmp_path / "run"))


def test_the_page_runs_as_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(imported("whisper").workdir, "runs/whisper")
    wavfile.write("a.wav", RATE, random_wave(0.5, seed=1))
    names = pages.execute("whisper.md")
    assert len(names["texts"]) == 1
