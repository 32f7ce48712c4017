"""Corpora of recordings: lines, folders and arrays, and the batches of their durations."""

import numpy as np
import pytest
from scipy.io import wavfile

from jaxformer.data.speech import (
    Recordings,
    SpeechConfig,
    duration_plan,
    list_recordings,
    pad_sounds,
)
from jaxformer.errors import UserError

TEXTS = {"a.wav": "one", "b.wav": "two two", "c.wav": "three"}
LENGTHS = (800, 1000, 1600)


@pytest.fixture
def folder(tmp_path):
    """Recordings in all three forms, of the same samples."""
    speech = tmp_path / "speech"
    speech.mkdir()
    generator = np.random.default_rng(0)
    sounds = [generator.integers(-999, 999, length).astype(np.int16) for length in LENGTHS]
    lines = []
    for (name, text), sound in zip(TEXTS.items(), sounds, strict=True):
        wavfile.write(speech / name, 8000, sound)
        (speech / name).with_suffix(".txt").write_text(f"{text}\n")
        lines.append(f"speech/{name}\t{text}\n")

    (tmp_path / "lines.tsv").write_text("".join(lines))
    np.savez(
        tmp_path / "arrays.npz",
        samples=np.concatenate(sounds),
        lengths=np.array(LENGTHS),
        rate=8000,
        transcripts=np.array(list(TEXTS.values())),
    )
    return tmp_path


def test_all_forms_have_the_same_recordings(folder):
    found = []
    for name in ("lines.tsv", "speech", "arrays.npz"):
        recordings = Recordings(list_recordings(f"{folder}/{name}"), rate=16_000)
        assert recordings.transcripts == list(TEXTS.values())
        assert recordings.lengths.tolist() == [1600, 2000, 3200]
        assert recordings.units.tolist() == [5, 7, 10]
        assert [len(recordings[number]) for number in range(3)] == [1600, 2000, 3200]
        found.append(recordings)

    assert len({recordings.sha256 for recordings in found}) == 1
    np.testing.assert_array_equal(found[0][1], found[2][1])

    some = found[0].select([2, 0])
    assert some.transcripts == ["three", "one"]
    np.testing.assert_array_equal(some[0], found[0][2])


def test_other_texts_or_samples_have_another_hash(folder):
    before = Recordings(list_recordings(f"{folder}/speech"), rate=16_000).sha256
    (folder / "speech" / "a.txt").write_text("ten\n")
    after = Recordings(list_recordings(f"{folder}/speech"), rate=16_000).sha256
    assert before != after


MISTAKES = {
    "speech/a.wav\tone\ttwo\n": "lines.tsv:1: expected the path of a WAV file, a tab and its tran",
    "\tone\n": "lines.tsv:1: expected the path of a WAV file",
    "speech/a.wav\n": "lines.tsv:1: speech/a.wav: expected a transcript, found none",
    "speech/a.wav\t \n": "lines.tsv:1: speech/a.wav: expected a transcript, found none",
    "": "expected recordings, found none",
    "https://a/b.wav\tone\n": "expected a path on a local disk",
}


@pytest.mark.parametrize("lines", MISTAKES)
def test_mistakes_in_lines(folder, lines):
    (folder / "lines.tsv").write_text(lines)
    with pytest.raises(UserError, match=MISTAKES[lines]):
        list_recordings(f"{folder}/lines.tsv", needs_transcripts=True)


def test_missing_files(folder, tmp_path):
    (folder / "lines.tsv").write_text("speech/z.wav\tone\n")
    recordings = list_recordings(f"{folder}/lines.tsv")
    with pytest.raises(UserError, match=r"z.wav: cannot be read: No such file"):
        Recordings(recordings, rate=16_000)

    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"empty: expected WAV files, found none"):
        list_recordings(f"{tmp_path}/empty")


def test_every_recording_is_in_one_batch_of_similar_durations():
    units = np.random.default_rng(0).integers(10, 100, 200)
    plan = duration_plan(units, units_per_batch=800, seed=1)
    seen = []
    for number in range(plan.batches_per_epoch):
        (rows, length, _), ids = plan.rows(number)
        assert rows * length <= 800
        own = [example for [example] in ids]
        assert max(units[own]) <= length
        seen += own

    assert sorted(seen) == list(range(200))
    # Each shape is a program, so that there are few. One shape alone would leave 45 % padding.
    assert len(plan.shapes) <= 4
    assert plan.efficiency > 0.8

    # Without a seed, no recording is too long.
    assert duration_plan(units, units_per_batch=50, seed=None).batches_per_epoch >= 100


def test_padding():
    rows = pad_sounds([np.ones(3, np.float32), np.full(1, 2, np.float32)], 3, length=4)
    assert rows.samples.tolist() == [[1, 1, 1, 0], [2, 0, 0, 0], [0, 0, 0, 0]]
    assert rows.lengths.tolist() == [3, 1, 0]


CONFIGS = {
    "data.seconds_per_batch must hold a recording of data.max_seconds: got 3 < 20": {
        "seconds_per_batch": 3.0
    },
    "data.valid: expected recordings, got 5%": {"valid": "5%"},
    "data.max_seconds must be greater than 0": {"max_seconds": 0.0},
}


@pytest.mark.parametrize("message", CONFIGS)
def test_sections_that_are_refused(message):
    with pytest.raises(UserError, match=message):
        SpeechConfig(**{"train": "a", "valid": "b"} | CONFIGS[message])


def test_data_must_be_named():
    with pytest.raises(UserError, match=r"data.train: expected recordings of your own, got none"):
        SpeechConfig().check_named()
