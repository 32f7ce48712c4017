"""Speech: recordings with or without transcripts, and batches of similar durations."""

import dataclasses
import functools
import hashlib
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float32, Int32

from jaxformer.data.corpus import DataSection
from jaxformer.data.held_out import is_share
from jaxformer.data.plan import BatchPlan, bucket_plan, sequential_plan
from jaxformer.data.sound import Sound, read_sound, read_sounds, resampled_length
from jaxformer.data.text_files import find_file, read_file
from jaxformer.errors import UserError
from jaxformer.fields import check_values, setting
from jaxformer.files import explain_read_errors, local_path

# Batches are padded to multiples of a unit, 20 ms: most models have a frame for each.
UNITS_PER_SECOND = 50
# Each shape of a batch is a program, and a model of waves takes long to compile.
_MOST_SHAPES = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpeechConfig(DataSection):
    """Recordings of speech.

    Attributes:
      corpus: "speech": recordings with transcripts. "unlabeled_speech": recordings, whose
        transcripts, if there are any, are not read, to pretrain a model of speech.
      train: Training recordings, comma-separated: text files whose lines are the path of a WAV file
        from their folder, a tab and the transcript; folders with WAV files and their transcripts,
        ``a.wav`` and ``a.txt``; or ``.npz`` files, see :func:`~jaxformer.data.sound.read_sounds`.
      valid: Validation recordings, in the same form.
      seconds_per_batch: Upper limit of the seconds of a global batch, padding included.
      max_seconds: Longest training recording, in seconds. Longer ones are skipped and counted.
    """

    corpus: Literal["speech", "unlabeled_speech"] = "speech"
    train: str = setting("", may_change=True, is_usual=True)
    valid: str = setting("", may_change=True, is_usual=True)
    seconds_per_batch: float = setting(160.0, "positive", is_usual=True)
    max_seconds: float = setting(20.0, "positive")
    length_field = None

    def __post_init__(self) -> None:
        check_values(self, "data")
        self.check_paths("train", "valid", "tokenizer")

        if is_share(self.valid):
            raise UserError(
                f"data.valid: expected recordings, got {self.valid}; split data.train into two"
            )
        if self.seconds_per_batch < self.max_seconds:
            raise UserError(
                "data.seconds_per_batch must hold a recording of data.max_seconds: got "
                f"{self.seconds_per_batch:g} < {self.max_seconds:g}"
            )

    @property
    def batch(self) -> tuple[str, str]:
        return (
            f"{self.seconds_per_batch:g} seconds in recordings of {self.max_seconds:g}",
            "data.seconds_per_batch or data.max_seconds",
        )

    @property
    def units_per_batch(self) -> int:
        """Upper limit of the units of a batch."""
        return int(self.seconds_per_batch * UNITS_PER_SECOND)

    @property
    def max_units(self) -> int:
        """Units of the longest training recording."""
        return int(self.max_seconds * UNITS_PER_SECOND)

    def check_named(self) -> None:
        for name in ("train", "valid"):
            if not getattr(self, name):
                raise UserError(
                    f"data.{name}: expected recordings of your own, got none; give "
                    f"--config.data.{name}=FILE; docs/sound.md shows its lines"
                )


class Recording(NamedTuple):
    """A recording of a corpus.

    Attributes:
      name: Its place, such as "speech/a.wav" or "speech.npz: recording 3".
      transcript: Its text; None if there is none.
      read: Reads it.
    """

    name: str
    transcript: str | None
    read: Callable[[], Sound]


class SoundRows(NamedTuple):
    """Recordings in the rows of a batch.

    Attributes:
      samples: Samples, padded with 0.
      lengths: Number of samples of each row; 0 for a row without a recording.
    """

    samples: Float32[Any, "B N"]
    lengths: Int32[Any, " B"]


class Recordings:
    """Recordings at one rate, read when they are needed.

    Attributes:
      names: Name of each recording.
      transcripts: Text of each recording, or None.
      lengths: Number of samples of each recording at ``rate``.
      rate: Samples per second.
      sha256: Hash of all samples and texts.
    """

    def __init__(self, recordings: Sequence[Recording], rate: int) -> None:
        """Reads all recordings once, to learn their lengths; a damaged one raises a UserError."""
        self.names = [recording.name for recording in recordings]
        self.transcripts = [recording.transcript for recording in recordings]
        self.rate = rate
        self._recordings = recordings

        digest = hashlib.sha256()
        lengths = []
        for recording in recordings:
            sound = recording.read()
            length = resampled_length(len(sound.samples), sound.rate, rate)
            lengths.append(length)

            identity = repr((sound.rate, recording.transcript))
            digest.update(identity.encode())
            digest.update(sound.samples.tobytes())

        self.lengths = np.array(lengths, np.int64)
        self.sha256 = digest.hexdigest()

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, number: int) -> Float32[np.ndarray, " N"]:
        """Returns the samples of a recording."""
        sound = self._recordings[number].read()
        return sound.at(self.rate)

    def select(self, keep: Sequence[int]) -> "Recordings":
        """Returns the recordings of these numbers, with the hash of all."""
        chosen = object.__new__(Recordings)  # Its recordings have been read already.
        chosen.rate = self.rate
        chosen.sha256 = self.sha256

        chosen.names = [self.names[number] for number in keep]
        chosen.transcripts = [self.transcripts[number] for number in keep]
        chosen.lengths = self.lengths[np.asarray(keep, np.int64)]
        chosen._recordings = [self._recordings[number] for number in keep]
        return chosen

    @property
    def units(self) -> np.ndarray:
        """Number of units of each recording, the last one begun."""
        return -(-self.lengths * UNITS_PER_SECOND // self.rate)

    @property
    def seconds(self) -> float:
        """Seconds of all recordings."""
        return float(self.lengths.sum() / self.rate)


def list_recordings(split: str, *, needs_transcripts: bool = False) -> list[Recording]:
    """Returns the recordings of a split, in the form of ``data.train``; a WAV file is one, too.

    Raises:
      UserError: There is no such file, or it is damaged, or lacks transcripts that are needed.
    """
    found: list[Recording] = []
    for name in split.split(","):
        found += _list_source(local_path(name))

    if not found:
        raise UserError(f"{split}: expected recordings, found none")

    for recording in found:
        transcript = recording.transcript or ""
        is_blank = not transcript.strip()
        if needs_transcripts and is_blank:
            raise UserError(
                f"{recording.name}: expected a transcript, found none; docs/sound.md shows its form"
            )
    return found


def _list_source(path: pathlib.Path) -> Iterator[Recording]:
    with explain_read_errors(path):
        is_folder = path.is_dir()

    if is_folder:
        yield from _list_folder(path)
    elif path.suffix == ".npz":
        yield from _list_arrays(path)
    elif path.suffix.lower() == ".wav":
        yield Recording(
            name=str(path),
            transcript=None,
            read=functools.partial(read_sound, path),
        )
    else:
        yield from _list_lines(find_file(path))


def _list_arrays(path: pathlib.Path) -> Iterator[Recording]:
    """Yields the recordings of an ``.npz`` file."""
    arrays = read_sounds(path)
    for number in range(len(arrays)):
        transcript = None
        if arrays.transcripts:
            transcript = arrays.transcripts[number]
        yield Recording(
            name=f"{path}: recording {number + 1}",
            transcript=transcript,
            read=functools.partial(arrays.sound, number),
        )


def _list_folder(folder: pathlib.Path) -> Iterator[Recording]:
    """Yields the WAV files of a folder, with the texts beside them."""
    with explain_read_errors(folder):
        paths = sorted(path for path in folder.iterdir() if path.suffix.lower() == ".wav")
    if not paths:
        raise UserError(f"{folder}: expected WAV files, found none")

    for path in paths:
        text = path.with_suffix(".txt")
        transcript = None
        if text.exists():
            lines = [line.strip() for line in read_file(text)]
            transcript = " ".join(lines).strip()

        yield Recording(
            name=str(path),
            transcript=transcript,
            read=functools.partial(read_sound, path),
        )


def _list_lines(path: pathlib.Path) -> Iterator[Recording]:
    """Yields the recordings that the lines of a text file name."""
    for number, line in enumerate(read_file(path), 1):
        name, tab, transcript = line.partition("\t")
        if not name or "\t" in transcript:
            raise UserError(
                f"{path}:{number}: expected the path of a WAV file, a tab and its transcript, got "
                f"{line[:50]!r}"
            )

        sound = path.parent / local_path(name)
        yield Recording(
            name=f"{path}:{number}: {name}",
            transcript=transcript if tab else None,
            read=functools.partial(read_sound, sound),
        )


def duration_plan(units: np.ndarray, *, units_per_batch: int, seed: int | None) -> BatchPlan:
    """Plans batches of recordings of similar duration, as sentences are batched by length.

    The second and the third number of a shape are the units of a row. Without a seed, recordings
    stay in order, and one that is longer than a batch has a batch of its own.
    """
    if seed is None:
        return sequential_plan(
            units,
            units,
            tokens_per_batch=units_per_batch,
            max_buckets=_MOST_SHAPES,
        )
    return bucket_plan(
        units,
        units,
        tokens_per_batch=units_per_batch,
        seed=seed,
        max_buckets=_MOST_SHAPES,
    )


def pad_sounds(
    sounds: Sequence[Float32[np.ndarray, " N"]],
    num_rows: int,
    length: int,
) -> SoundRows:
    """Arranges recordings, one in each row.

    >>> pad_sounds([np.ones(2, np.float32)], 2, 3).samples.tolist()
    [[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
    """
    samples = np.zeros((num_rows, length), np.float32)
    lengths = np.zeros(num_rows, np.int32)
    for row, sound in enumerate(sounds):
        end = len(sound)
        samples[row, :end] = sound
        lengths[row] = end
    return SoundRows(samples, lengths)
