"""Timestamps of Whisper against transformers: the rules, segments of recordings, the command.

The fixtures are made by ``tests/fixtures/make_whisper.py``.
"""

import dataclasses
import functools
import json
import pathlib
import tempfile
from typing import Any

import jax
import numpy as np
import pytest
from scipy.io import wavfile

from jaxformer.cli import main
from jaxformer.data.sound import Sound
from jaxformer.errors import UserError
from jaxformer.interop.huggingface.importer import import_huggingface
from jaxformer.search.constraints import SearchContext
from jaxformer.tasks.speech.speech_recognizer import SpeechRecognizer
from jaxformer.tasks.transcription.speech_transcriber import SpeechTranscriber
from jaxformer.tasks.transcription.timestamps import TimestampRules

from ..fixtures.random_weights import random_arrays
from ..fixtures.waves import RATE, RECORDINGS, random_wave
from .families import imported, write_model

pytest.importorskip("tokenizers")

FOLDER = pathlib.Path(__file__).parents[1] / "fixtures" / "whisper"
LIMIT = 16
BOS = 2
EOS = 1


@functools.cache
def timed_run(name):
    """Imports a model whose times are not suppressed, as OpenAI's."""
    temporary = pathlib.Path(tempfile.mkdtemp())
    folder = write_model(name, temporary / "model")
    path = folder / "generation_config.json"
    fields = json.loads(path.read_text())
    first = fields["no_timestamps_token_id"] + 1
    fields["suppress_tokens"] = [each for each in fields["suppress_tokens"] if each < first]
    path.write_text(json.dumps(fields))

    import_huggingface(folder, temporary / "run")
    return temporary / "run"


def transcriber_of(name, beam_size):
    run = timed_run(name)
    search = dataclasses.replace(
        imported(name).trained.config.search,
        beam_size=beam_size,
        max_length=LIMIT,
    )
    return SpeechTranscriber.load(run, search=search)


def sounds():
    return [Sound(random_wave(seconds, seed), RATE) for seconds, seed in RECORDINGS]


def test_rules_equal_transformers():
    """For outputs of zero to six tokens, in the groups that they have the same length."""
    tokenizer: Any = imported("whisper").trained.tokenizer
    stored = np.load(FOLDER / "times.npz")
    ours = tokenizer.our_ids
    first = tokenizer.generation["no_timestamps_token_id"] + 1
    theirs = random_arrays({"logits": [70, len(ours)]}, seed=7, spread=2)["logits"]
    theirs[::2, first:] -= 8

    logits = np.full((70, 1, tokenizer.vocab_size), -np.inf, np.float32)
    logits[:, 0, ours] = theirs
    outputs = stored["outputs"]
    tokens = np.where(outputs < 0, 0, ours[outputs])[:, None].astype(np.int32)
    rules = jax.jit(TimestampRules.of(tokenizer))

    allowed = np.unpackbits(stored["allowed"], axis=1, count=len(ours)).astype(bool)
    lengths = (outputs >= 0).sum(axis=1)
    found = np.zeros_like(allowed)
    for length in range(7):
        state: dict[str, Any] = {
            "logits": logits,
            "tokens": tokens,
            "step": np.int32(length),
            "prefix": np.zeros((70, 0), np.int32),
            "sentence_ids": np.arange(70, dtype=np.int32),
        }
        context = SearchContext(**state, bos_id=BOS, eos_id=EOS, pad_id=0)
        possible = np.isfinite(rules(logits, context))[:, 0, ours]
        found[lengths == length] = possible[lengths == length]
    np.testing.assert_array_equal(found, allowed)
    # Both kinds of tokens are possible, and in some rows only times.
    only_times = ~allowed[:, :first].any(axis=1)
    assert 10 < only_times.sum() < 60


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("name", ["whisper", "whisper_english"])
def test_segments_equal_transformers(name, beam_size):
    """Of short recordings, and of long ones whose windows begin where the last segment ended."""
    stored = np.load(FOLDER / f"segments_{name}.npz")
    own: Any = transcriber_of(name, beam_size)
    steps = own.tokenizer.time_steps
    language = "de" if own.tokenizer.spoken else None
    found = own.transcribe_segments(sounds(), language=language)

    ends = np.flatnonzero(stored[f"tokens_{beam_size}"] < 0)
    tokens = np.split(stored[f"tokens_{beam_size}"], ends + 1)
    rows = iter(zip(stored[f"times_{beam_size}"], tokens[:-1], strict=True))
    for segments, count in zip(found, stored[f"counts_{beam_size}"], strict=True):
        expected = []
        for _ in range(count):
            times, theirs = next(rows)
            ids = own.tokenizer.our_ids[theirs[:-1]].tolist()
            # The last segment of a window that is read in part has the next one's beginning.
            if len(ids) > 1 and (steps[ids[-2:]] >= 0).all():
                del ids[-1]
            text = own.detokenize(ids)
            if text.strip():
                expected.append((times.tolist(), ids, text))

        assert [segment.tokens for segment in segments] == [ids for _, ids, _ in expected]
        assert [segment.text for segment in segments] == [text for _, _, text in expected]
        given = [[segment.start, segment.end] for segment in segments]
        np.testing.assert_allclose(given, [times for times, _, _ in expected], atol=1e-3)


def test_a_recording_does_not_depend_on_the_others():
    own = transcriber_of("whisper", 1)
    finished = []
    together = own.transcribe_segments(sounds(), language="de", report=finished.append)
    assert sum(finished) == len(RECORDINGS)
    alone = own.transcribe_segments(sounds()[1:2], language="de")
    assert alone == together[1:2]

    # A recording without samples is a short silence.
    silence = Sound(np.zeros(0, np.float32), RATE)
    assert len(own.transcribe_segments([silence], language="de")) == 1


def test_the_command_writes_times(tmp_path, capsys):
    seconds, seed = RECORDINGS[1]
    wavfile.write(tmp_path / "a.wav", RATE, random_wave(seconds, seed))
    (tmp_path / "a.txt").write_text("the cat")
    words = ["transcribe", "--workdir", str(timed_run("whisper")), "--language", "de"]
    words += ["--beam-size", "1", "--max-length", str(LIMIT)]
    assert main([*words, str(tmp_path), "--format", "jsonl"]) == 0

    out, err = capsys.readouterr()
    expected = transcriber_of("whisper", 1).transcribe_segments(sounds()[1:2], language="de")
    line = json.loads(out)
    assert line["sound"] == str(tmp_path / "a.wav")
    assert [row["text"] for row in line["segments"]] == [each.text for each in expected[0]]
    assert "word error rate" in err

    two = [str(tmp_path / "a.wav")] * 2
    assert main([*words, *two, "--format", "srt"]) == 2
    assert "--format srt has the subtitles of one recording: got 2" in capsys.readouterr().err


def test_other_models_write_no_times():
    recognizer = SpeechRecognizer.load(imported("wav2vec2").workdir)
    with pytest.raises(UserError, match="expected a model that writes times, such as an imported"):
        recognizer.transcribe_segments(sounds())

    speech_pair = SpeechTranscriber.load(imported("wav2vec2_gpt2").workdir)
    with pytest.raises(UserError, match="expected a model that writes times"):
        speech_pair.transcribe_segments(sounds())
