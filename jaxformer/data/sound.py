"""Sound: WAV files and ``.npz`` files, read as samples of one channel at one rate."""

import io
import math
import pathlib
import threading
import warnings
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, Int, Shaped

from jaxformer.data.array_files import ArrayFile, read_arrays
from jaxformer.errors import UserError, prefix_errors
from jaxformer.files import read_whole

# Samples a second that most models of speech take.
SAMPLE_RATE = 16_000
# Two hours of stereo at 48 kHz in 24 bits are two GB; a day at 16 kHz has as much.
_MAX_BYTES = 2 << 30
# The filter that resamples has taps in proportion to the rates, which a file may claim at will.
_LOWEST_RATE = 1_000
_HIGHEST_RATE = 384_000
# A program that writes to a pipe does not know the size, and announces at least this.
_UNKNOWN_SIZE = 0x7FFF_0000

# First bytes of WAV files: little-endian, big-endian, and with sizes of 64 bits.
_WAV = (b"RIFF", b"RIFX", b"RF64")
# Of other files, by the place and the bytes that tell them.
_OTHERS = {
    (0, b"fLaC"): "FLAC",
    (0, b"OggS"): "Ogg",
    (0, b"ID3"): "MP3",
    (0, b"\xff\xfb"): "MP3",
    (0, b"\xff\xf3"): "MP3",
    (0, b"FORM"): "AIFF",
    (4, b"ftyp"): "MP4 or M4A",
    (0, b"\x1a\x45\xdf\xa3"): "Matroska or WebM",
}

_WARNINGS = threading.Lock()  # The filters of warnings belong to all threads.


class Sound(NamedTuple):
    """Samples of one channel, from -1 to 1, and how many of them are a second."""

    samples: Float32[np.ndarray, " N"]
    rate: int

    def at(self, rate: int) -> Float32[np.ndarray, " M"]:
        """Returns the samples at another rate, [ceil(N * rate / self.rate)]."""
        return resample(self.samples, self.rate, rate)


class SoundArrays(NamedTuple):
    """Recordings of an ``.npz`` file, one after another.

    Attributes:
      samples: All samples, as in the file: integers, or floats from -1 to 1.
      starts: Index of the first sample of each recording, and the number of all samples.
      rate: Samples per second.
      transcripts: The text of each recording; None if the file has none.
    """

    samples: Shaped[np.ndarray, " N"]
    starts: Int[np.ndarray, " R1"]
    rate: int
    transcripts: list[str] | None

    def __len__(self) -> int:
        return len(self.starts) - 1

    def sound(self, number: int) -> Sound:
        """Returns a recording."""
        first, end = self.starts[number : number + 2]
        return Sound(_scale(self.samples[first:end]), self.rate)


def read_sound(path: pathlib.Path) -> Sound:
    """Reads a WAV file: PCM of 8 to 64 bits, or floats. Channels are averaged.

    Raises:
      UserError: There is no such file, or it is damaged, empty, not finite, or of another format.
    """
    content = read_whole(path, limit=_MAX_BYTES)
    if content[:4] not in _WAV:
        raise _format_error(path, content)
    _check_size(path, content)

    place = f"{path}: expected a WAV file"
    # Damage raises exceptions of any type, from struct or numpy.
    with prefix_errors(place, Exception):
        rate, channels = _decode(content)

    with prefix_errors(str(path)):
        _check_rate(rate)
        samples = _scale(channels)
        if samples.ndim == 2:
            samples = samples.mean(axis=1, dtype=np.float32)
        _check_samples(samples)
    return Sound(samples, rate)


def read_sounds(path: pathlib.Path) -> SoundArrays:
    """Reads an ``.npz`` file of recordings.

    It has the arrays ``samples``, [N] of all recordings one after another, int16 or float32, and
    ``rate``, an integer. With several recordings, ``lengths`` has the number of samples of each;
    ``transcripts``, if there is one, has their texts.

    Raises:
      UserError: There is no such file, or it has other arrays.
    """
    file = read_arrays(path, ("samples", "rate", "lengths", "transcripts"))
    with prefix_errors(str(path)):
        return _check_arrays(file)


def resample(
    samples: Float32[np.ndarray, " N"],
    rate: int,
    new_rate: int,
) -> Float32[np.ndarray, " M"]:
    """Returns samples at another rate, by a polyphase filter with a Kaiser window.

    >>> resample(np.zeros(6, np.float32), 48_000, 16_000).shape
    (2,)
    """
    if rate == new_rate:
        return samples

    from scipy.signal import resample_poly

    divisor = math.gcd(rate, new_rate)
    resampled: Any = resample_poly(samples, new_rate // divisor, rate // divisor)
    return resampled.astype(np.float32)


def resampled_length(length: int, rate: int, new_rate: int) -> int:
    """Returns the number of samples that :func:`resample` returns."""
    return -(-length * new_rate // rate)


def standardize(samples: Float32[np.ndarray, " N"]) -> Float32[np.ndarray, " N"]:
    """Returns samples with mean 0 and variance 1, as Wav2Vec 2.0 takes them."""
    centered = samples - samples.mean()
    scale = np.sqrt(samples.var() + 1e-7)
    return (centered / scale).astype(np.float32)


def _decode(content: bytes) -> tuple[int, np.ndarray]:
    """Returns rate and samples, [N] or [N, channels], in the dtype of a WAV file."""
    from scipy.io import wavfile

    # It warns about chunks that are not samples, such as the name of the artist.
    with _WARNINGS, warnings.catch_warnings():
        warnings.simplefilter("ignore", wavfile.WavFileWarning)
        return wavfile.read(io.BytesIO(content))


def _scale(samples: np.ndarray) -> np.ndarray:
    """Returns samples as float32 from -1 to 1; integers of 8 bits have no sign in WAV files."""
    if samples.dtype.kind == "f":
        return samples.astype(np.float32)

    half = 2.0 ** (8 * samples.dtype.itemsize - 1)
    values = samples.astype(np.float64 if samples.dtype.itemsize > 2 else np.float32)
    if samples.dtype.kind == "u":
        values = values - half
    return (values / half).astype(np.float32)


def _format_error(path: pathlib.Path, content: bytes) -> UserError:
    if not content:
        return UserError(f"{path}: expected a WAV file, found an empty one")

    found = "another format"
    for (start, mark), name in _OTHERS.items():
        if content[start : start + len(mark)] == mark:
            found = name
    converted = path.with_suffix(".wav").name
    if converted == path.name:
        converted = f"{path.stem}-16k.wav"

    return UserError(
        f"{path}: expected a WAV file, found {found}; convert it, for example with ffmpeg -i "
        f"{path.name} -ac 1 -ar {SAMPLE_RATE} {converted}"
    )


def _check_size(path: pathlib.Path, content: bytes) -> None:
    """Refuses a file that has lost its end, whose samples would be shorter without a message."""
    order = "big" if content[:4] == b"RIFX" else "little"
    announced = 8 + int.from_bytes(content[4:8], order)
    is_known = content[:4] != b"RF64" and announced < _UNKNOWN_SIZE
    if is_known and announced > len(content):
        raise UserError(
            f"{path}: expected {announced:,} bytes, as its header says, found {len(content):,}; "
            "copy it again"
        )


def _check_rate(rate: int) -> None:
    if not _LOWEST_RATE <= rate <= _HIGHEST_RATE:
        raise UserError(
            f"expected {_LOWEST_RATE:,} to {_HIGHEST_RATE:,} samples a second, found {rate:,}"
        )


def _check_samples(samples: np.ndarray) -> None:
    if not samples.size:
        raise UserError("expected samples, found none")
    if not np.isfinite(samples).all():
        first = int(np.argmin(np.isfinite(samples)))
        raise UserError(f"expected finite samples, found {samples[first]} in sample {first:,}")


def _check_arrays(file: ArrayFile) -> SoundArrays:
    """Returns the recordings of a file if its arrays fit together."""
    arrays = file.arrays
    if not {"samples", "rate"} <= arrays.keys():
        raise UserError(
            "expected the arrays samples, int16 or float32 [N], and rate, an integer, got "
            f"{', '.join(file.names)[:80] or 'none'}"
        )

    samples = arrays["samples"]
    if samples.ndim != 1 or samples.dtype not in (np.int16, np.float32):
        raise _array_error("samples, int16 or float32 [N]", samples)
    _check_samples(samples)

    rate = arrays["rate"]
    if rate.size != 1 or rate.dtype.kind not in "iu":
        raise _array_error("rate, an integer", rate)
    _check_rate(int(rate.item()))

    lengths = arrays.get("lengths", np.array([len(samples)]))
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu":
        raise _array_error("lengths, integers [R]", lengths)
    are_whole = lengths.min(initial=1) > 0 and lengths.sum() == len(samples)
    if not are_whole:
        raise UserError(
            f"expected lengths above 0 whose sum is {len(samples):,}, the number of samples, got "
            f"{int(lengths.sum()):,}"
        )

    transcripts = arrays.get("transcripts")
    if transcripts is not None:
        if transcripts.shape != lengths.shape or transcripts.dtype.kind != "U":
            raise _array_error(f"transcripts, texts [{len(lengths)}]", transcripts)
        transcripts = transcripts.tolist()

    return SoundArrays(
        samples=samples,
        starts=np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]),
        rate=int(rate.item()),
        transcripts=transcripts,
    )


def _array_error(expected: str, given: np.ndarray) -> UserError:
    return UserError(f"expected {expected}, got {given.dtype} {list(given.shape)}")
