"""WAV files of all formats, written here byte by byte, and one message for each broken file."""

import io
import struct

import numpy as np
import pytest
from scipy.io import wavfile

from jaxformer.data.array_files import read_arrays
from jaxformer.data.sound import read_sound, read_sounds, resample, resampled_length, standardize
from jaxformer.errors import UserError

WAVE = np.array([0.0, 0.5, -0.5, 0.25, -1.0, 0.75])


def wav(data, *, bits, kind=1, channels=1, rate=16_000, before=b""):
    """Returns a WAV file with the given bytes of samples, by the layout of RIFF."""
    width = channels * bits // 8
    form = struct.pack("<HHIIHH", kind, channels, rate, rate * width, width, bits)
    chunks = b"fmt " + struct.pack("<I", len(form)) + form + before
    chunks += b"data" + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


def integers(bits):
    """Returns the samples as little-endian integers; 8 bits have no sign."""
    scaled = (WAVE * 2 ** (bits - 1)).astype(np.int64)
    if bits == 8:
        return (scaled + 128).astype(np.uint8).tobytes()
    return b"".join(int(each).to_bytes(bits // 8, "little", signed=True) for each in scaled)


FORMS = {
    "8 bits": wav(integers(8), bits=8),
    "16 bits": wav(integers(16), bits=16),
    "24 bits": wav(integers(24), bits=24),
    "32 bits": wav(integers(32), bits=32),
    "float": wav(WAVE.astype("<f4").tobytes(), bits=32, kind=3),
    "double": wav(WAVE.astype("<f8").tobytes(), bits=64, kind=3),
    "with an artist": wav(integers(16), bits=16, before=b"id3 \x04\0\0\0name"),
    "of a pipe": wav(integers(16), bits=16)[:4] + b"\xff" * 4 + wav(integers(16), bits=16)[8:],
}


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_have_the_same_samples(tmp_path, form):
    path = tmp_path / "a.wav"
    path.write_bytes(FORMS[form])
    sound = read_sound(path)

    assert sound.rate == 16_000
    assert sound.samples.dtype == np.float32
    np.testing.assert_array_equal(sound.samples, WAVE.astype(np.float32))


def test_channels_are_averaged(tmp_path):
    path = tmp_path / "a.wav"
    both = np.stack([WAVE, np.zeros(6)], axis=1).astype("<f4")
    path.write_bytes(wav(both.tobytes(), bits=32, kind=3, channels=2, rate=8000))

    sound = read_sound(path)
    np.testing.assert_array_equal(sound.samples, WAVE.astype(np.float32) / 2)
    assert sound.at(16_000).shape == (12,)


FLOATS = np.array([0, np.nan, 1], "<f4").tobytes()
BROKEN = {
    b"": "expected a WAV file, found an empty one",
    b"fLaC\0\0": r"found FLAC; convert it, for example with ffmpeg -i a.wav -ac 1 -ar 16000 a-16k",
    b"\0\0\0\x20ftypM4A ": "found MP4 or M4A",
    b"a text": "found another format",
    FORMS["16 bits"][:-3]: "expected 56 bytes, as its header says, found 53; copy it again",
    b"RIFF\0\0\0\0": "expected a WAV file: ",
    b"RIFF\x04\0\0\0WAVE": "expected a WAV file: ",
    wav(b"", bits=16): "expected samples, found none",
    wav(FLOATS, bits=32, kind=3): "expected finite samples, found nan in sample 1",
    wav(integers(8), bits=8, kind=7): "expected a WAV file: Unknown wave file format: MULAW",
    wav(integers(8), bits=8, channels=0): "expected a WAV file: ",
    wav(integers(16)[:5], bits=16): "expected a WAV file: ",
    wav(integers(16), bits=16, rate=3): "expected 1,000 to 384,000 samples a second, found 3",
    wav(integers(16), bits=16, rate=2**31 - 1): "found 2,147,483,647",
}


@pytest.mark.parametrize("content", BROKEN)
def test_a_broken_file_is_refused(tmp_path, content):
    path = tmp_path / "a.wav"
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"a.wav: .*{BROKEN[content]}"):
        read_sound(path)


def test_random_bytes_give_sound_or_a_message(tmp_path):
    generator = np.random.default_rng(0)
    path = tmp_path / "a.wav"
    good = FORMS["16 bits"]
    refused = 0
    for _ in range(300):
        content = bytearray(good)
        for place in generator.integers(4, 44, 3):
            content[place] = generator.integers(256)
        path.write_bytes(content)
        try:
            sound = read_sound(path)
        except UserError:
            refused += 1
        else:
            assert np.isfinite(sound.samples).all()
    assert refused > 100


def test_resampling_keeps_a_tone():
    """A sine that both rates have; ends are left out, where the filter sees zeros."""
    for rate, new_rate in ((48_000, 16_000), (8_000, 16_000), (22_050, 16_000)):
        count = rate // 2
        tone = np.sin(2 * np.pi * 440 * np.arange(count) / rate).astype(np.float32)
        found = resample(tone, rate, new_rate)

        assert len(found) == resampled_length(count, rate, new_rate)
        expected = np.sin(2 * np.pi * 440 * np.arange(len(found)) / new_rate)
        inner = slice(200, -200)
        np.testing.assert_allclose(found[inner], expected[inner], atol=2e-3)


def test_standardized_samples():
    samples = np.random.default_rng(0).normal(3, 2, 1000).astype(np.float32)
    found = standardize(samples)
    assert abs(found.mean()) < 1e-6
    assert abs(found.std() - 1) < 1e-6
    assert not standardize(np.full(9, 0.5, np.float32)).any()


ARRAYS = {
    "samples": np.array([1, 2, 3, 4, 5], np.int16),
    "rate": 8000,
    "lengths": np.array([2, 3]),
    "transcripts": np.array(["one", "two"]),
}


def test_recordings_of_arrays(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, **ARRAYS)
    arrays = read_sounds(path)

    assert len(arrays) == 2
    assert arrays.transcripts == ["one", "two"]
    found = arrays.sound(1)
    assert found.rate == 8000
    np.testing.assert_array_equal(found.samples, np.float32([3, 4, 5]) / 2**15)

    # Without lengths, it is a single recording, as of a WAV file.
    np.savez(path, samples=ARRAYS["samples"], rate=8000)
    wavfile.write(tmp_path / "a.wav", 8000, ARRAYS["samples"])
    of_wav = read_sound(tmp_path / "a.wav")
    np.testing.assert_array_equal(read_sounds(path).sound(0).samples, of_wav.samples)


REFUSED = {
    "rate, an integer, got float64": {"rate": 8000.0},
    "found 0": {"rate": 0},
    r"samples, int16 or float32 \[N\], got float64 \[2\]": {"samples": np.zeros(2)},
    r"samples, int16 or float32 \[N\], got int16 \[1, 2\]": {"samples": np.zeros((1, 2), "int16")},
    "finite samples, found inf in sample 1": {"samples": np.array([0, np.inf], np.float32)},
    "lengths above 0 whose sum is 5, .* got 6": {"lengths": np.array([2, 4])},
    "lengths above 0 whose sum is 5": {"lengths": np.array([5, 0])},
    r"transcripts, texts \[2\], got <U3 \[1\]": {"transcripts": np.array(["one"])},
    "Object arrays cannot be loaded": {"samples": np.array([{}], object)},
}


@pytest.mark.parametrize("message", REFUSED)
def test_other_arrays_are_refused(tmp_path, message):
    path = tmp_path / "a.npz"
    np.savez(path, **ARRAYS | REFUSED[message])
    with pytest.raises(UserError, match=f"a.npz: expected .*{message}"):
        read_sounds(path)


def test_files_without_the_arrays(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, images=np.zeros(1))
    with pytest.raises(UserError, match=r"expected the arrays samples, .*, got images"):
        read_sounds(path)

    path.write_bytes(b"no archive")
    with pytest.raises(UserError, match=r"a.npz: expected .* it is not a zip archive"):
        read_sounds(path)


def test_arrays_that_unpack_to_too_much_are_refused(tmp_path, monkeypatch):
    stream = io.BytesIO()
    np.savez_compressed(stream, samples=np.zeros(10**6, np.int16), rate=8000)
    path = tmp_path / "a.npz"
    path.write_bytes(stream.getvalue())
    monkeypatch.setattr("jaxformer.data.array_files._MAX_BYTES", 10**6)

    with pytest.raises(UserError, match=r"expected at most 1,000,000 bytes of arrays, found 2,000"):
        read_arrays(path, ["samples"])
