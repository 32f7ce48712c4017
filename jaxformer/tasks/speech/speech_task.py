"""Trains a recognizer of speech with CTC (Graves et al. 2006)."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float32, Int32, PyTree

from jaxformer.config import Config, data_section, model_section
from jaxformer.data.batch import Shape
from jaxformer.data.corpus import Corpus
from jaxformer.data.examples import describe_example
from jaxformer.data.findings import list_first
from jaxformer.data.letters_tokenizer import LettersTokenizer
from jaxformer.data.loader import load_batches, round_up
from jaxformer.data.plan import BatchPlan
from jaxformer.data.sound import Sound, standardize
from jaxformer.data.speech import (
    UNITS_PER_SECOND,
    Recordings,
    SpeechConfig,
    duration_plan,
    list_recordings,
    pad_sounds,
)
from jaxformer.data.tokenizer import PAD
from jaxformer.errors import UserError, prefix_errors
from jaxformer.evaluation.word_error_rate import error_rates
from jaxformer.kinds.speech_recognition import SPEECH_RECOGNITION
from jaxformer.models.wav2vec2 import Wav2Vec2Config
from jaxformer.runs import processes
from jaxformer.runs.workdir import Workdir
from jaxformer.tasks.initialization import tokenizer_of_run
from jaxformer.tasks.speech.masked_spans import masked_spans
from jaxformer.tasks.speech.speech_recognizer import SpeechRecognizer
from jaxformer.tasks.token_task import NetworkLoss, TokenTask
from jaxformer.training.ctc import ctc_losses
from jaxformer.training.flops import layers_flops
from jaxformer.training.placement import BatchShards
from jaxformer.training.task import CheckStop, Randomness, Sums
from jaxformer.training.validation import evaluate_loss

# Of another stream of random numbers than dropout.
_MASK_STREAM = 1


class SpeechBatch(NamedTuple):
    """Recordings and their letters.

    Attributes:
      samples: Waves, padded with 0.
      lengths: Samples of each row; 0 for a row without a recording.
      letters: Letters of each row, padded with 0.
    """

    samples: Float32[Any, "B N"]
    lengths: Int32[Any, " B"]
    letters: Int32[Any, "B U"]


class Utterance(NamedTuple):
    """A recording as a model takes it, and its letters."""

    samples: Float32[np.ndarray, " N"]
    letters: Sequence[int]


@dataclasses.dataclass(frozen=True)
class Utterances:
    """The utterances of a split, by their numbers."""

    recordings: Recordings
    letters: Sequence[Sequence[int]]
    is_standardized: bool

    def __getitem__(self, number: int) -> Utterance:
        samples = self.recordings[number]
        if self.is_standardized:
            samples = standardize(samples)
        return Utterance(samples, self.letters[number])

    @property
    def most_letters(self) -> int:
        return max(map(len, self.letters))


def make_speech_batch(
    rows: Sequence[Sequence[Utterance]],
    shape: Shape,
    *,
    rate: int,
    most_letters: int,
) -> SpeechBatch:
    """Arranges utterances, one in each row; ``shape`` has rows and units of time."""
    num_rows, units, _ = shape
    letters = np.full((num_rows, most_letters), PAD, np.int32)
    for row, [utterance] in enumerate(rows):
        letters[row, : len(utterance.letters)] = utterance.letters

    sounds = [utterance.samples for [utterance] in rows]
    samples, lengths = pad_sounds(sounds, num_rows, units * rate // UNITS_PER_SECOND)
    return SpeechBatch(samples, lengths, letters)


def fewest_frames(letters: Sequence[int]) -> int:
    """Returns the number of frames of the shortest alignment: equal neighbors need a blank.

    >>> fewest_frames([5, 5, 7])
    4
    """
    repeats = sum(first == second for first, second in itertools.pairwise(letters))
    return len(letters) + repeats


class SpeechLoss(NetworkLoss):
    """Sums the loss of CTC over recordings, whose frames training masks in spans."""

    def __call__(
        self,
        params: PyTree,
        batch: SpeechBatch,
        randomness: Randomness | None,
    ) -> Sums:
        model: Wav2Vec2Config = self.model  # pyright: ignore[reportAssignmentType]
        masked = None
        if randomness is not None and model.mask_rate:
            masked = masked_spans(
                jax.random.fold_in(randomness.key, _MASK_STREAM),
                randomness.row_ids,
                model.num_frames(batch.samples.shape[1]),
                rate=model.mask_rate,
                length=model.mask_length,
            )

        def forward(module: Any, dropout: dict[str, Any]) -> Array:
            return module(batch.samples, batch.lengths, masked=masked, **dropout)

        logits = self.apply(params, randomness, forward)
        losses = ctc_losses(logits, model.num_frames(batch.lengths), batch.letters)
        has_sound = batch.lengths > 0
        return {
            "loss": jnp.where(has_sound, losses, 0).sum(),
            "count": (batch.letters != PAD).sum(dtype=jnp.int32),
        }


class SpeechRecognition(TokenTask):
    """Trains a :class:`~jaxformer.models.wav2vec2.Wav2Vec2` on recordings with transcripts.

    Validates with the loss of a letter, and with the error rates of words and letters.
    """

    kind = SPEECH_RECOGNITION
    loss_class = SpeechLoss  # pyright: ignore[reportAssignmentType]
    tokenizer: LettersTokenizer
    log_formats = {  # noqa: RUF012
        "loss": "loss of a letter {:.3f}",
        "word_error_rate": "word error rate {:.1f} %",
        "letter_error_rate": "of letters {:.1f} %",
    }

    def __init__(
        self,
        config: Config,
        tokenizer: LettersTokenizer,
        train: Recordings,
        valid: Recordings,
    ) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self._section = data_section(config, SpeechConfig)
        self._model = model_section(config, Wav2Vec2Config)
        self._train, self._skipped = self._prepare(train, self._section.max_seconds)
        self._valid, _ = self._prepare(valid, None)
        self._plan = duration_plan(
            self._train.recordings.units,
            units_per_batch=self._section.units_per_batch,
            seed=config.training.seed,
        )
        self._valid_plan = duration_plan(
            self._valid.recordings.units,
            units_per_batch=self._section.units_per_batch,
            seed=None,
        )

    @classmethod
    def open(
        cls,
        config: Config,
        folder: Workdir,
        corpus: Corpus | None = None,
    ) -> "SpeechRecognition":
        if corpus is not None:
            raise UserError("corpus: expected none with speech; name recordings in data.train")

        data = data_section(config, SpeechConfig)
        rate = model_section(config, Wav2Vec2Config).sample_rate
        train = Recordings(list_recordings(data.train, needs_transcripts=True), rate)
        valid = Recordings(list_recordings(data.valid, needs_transcripts=True), rate)
        tokenizer = _open_tokenizer(config, folder, train)
        return cls(config, tokenizer, train=train, valid=valid)

    def _prepare(self, recordings: Recordings, max_seconds: float | None) -> tuple[Utterances, int]:
        """Returns the utterances that can be aligned, and how many are skipped."""
        letters = []
        keep = []
        for number, transcript in enumerate(recordings.transcripts):
            with prefix_errors(recordings.names[number]):
                ids = self.tokenizer.encode(transcript or "")
            length = int(recordings.lengths[number])
            fits = max_seconds is None or length <= max_seconds * recordings.rate
            if fits and self._model.num_frames(length) >= max(1, fewest_frames(ids)):
                keep.append(number)
                letters.append(ids)

        skipped = len(recordings) - len(keep)
        if not keep:
            raise UserError(
                f"{recordings.names[0]}: no recording is left: {skipped:,} are longer than "
                "data.max_seconds, or have fewer frames than letters"
            )
        chosen = Utterances(recordings.select(keep), letters, self._model.standardized)
        return chosen, skipped

    @classmethod
    def longest_batch(cls, config: Config, shards: BatchShards) -> PyTree:
        data = data_section(config, SpeechConfig)
        rows = round_up(data.units_per_batch // data.max_units, shards.row_multiple)
        rate = model_section(config, Wav2Vec2Config).sample_rate
        # No more letters than units can be aligned.
        return _abstract_batch((rows, data.max_units), rate, most_letters=data.max_units)

    def shapes(self, shards: BatchShards) -> Sequence[PyTree]:
        batches = []
        for rows, units, _ in self._plan.shapes:
            padded_rows = round_up(rows, shards.row_multiple)
            batch = _abstract_batch(
                (padded_rows, units),
                self._model.sample_rate,
                most_letters=self._train.most_letters,
            )
            batches.append(batch)
        return batches

    def batches(self, start: int, shards: BatchShards) -> Iterator[SpeechBatch]:
        stop = self.config.training.steps
        return self._load(self._train, self._plan, shards, start=start, stop=stop)

    def _load(
        self,
        split: Utterances,
        plan: BatchPlan,
        shards: BatchShards,
        *,
        start: int,
        stop: int,
    ) -> Iterator[SpeechBatch]:
        make = functools.partial(
            make_speech_batch,
            rate=self._model.sample_rate,
            most_letters=split.most_letters,
        )
        return load_batches(
            split,
            plan,
            make=make,
            start=start,
            stop=stop,
            row_multiple=shards.row_multiple,
            local_shards=shards.local_shards,
            shard_count=shards.shard_count,
        )

    def identity(self) -> dict[str, str]:
        return {
            "tokenizer": self.tokenizer.sha256,
            "train": self._train.recordings.sha256,
            "valid": self._valid.recordings.sha256,
        }

    def summary(self) -> str:
        lines = []
        splits = (("training", self._train.recordings), ("validation", self._valid.recordings))
        for title, recordings in splits:
            line = f"{len(recordings):,} {title} recordings, {recordings.seconds / 60:.1f} minutes"
            if title == "training" and self._skipped:
                line += f", {self._skipped:,} skipped, which are too long or have too many letters"
            lines.append(line)

        plan = self._plan
        lines.append(
            f"{plan.batches_per_epoch:,} batches an epoch in {len(plan.shapes)} shapes: "
            f"{plan.efficiency:.1%} sound, {1 - plan.efficiency:.1%} padding"
        )
        for _, recordings in splits:
            transcript = recordings.transcripts[0] or ""
            lines.append(describe_example(recordings.names[0], [("transcript", transcript)]))
        return "\n".join(lines)

    def flops(self, batch: SpeechBatch) -> int:
        rows, length = batch.samples.shape
        return recognition_flops(self._model, rows, length)

    def example_ids(self, number: int) -> list[int]:
        """Returns the numbers of the recordings of a batch, without those that are skipped."""
        _, rows = self._plan.rows(number)
        return [example for [example] in rows]

    def describe_batch(self, number: int) -> str:
        names = self._train.recordings.names
        own = [names[example] for example in self.example_ids(number)]
        return f"it had {len(own)} recordings: {list_first(own[:10], len(own))}"

    def evaluate(
        self,
        params: PyTree,
        mesh: Mesh,
        check_stop: CheckStop,
    ) -> dict[str, float]:
        """Computes the mean loss of a letter, and error rates of the first recordings."""
        batches = self._load(
            self._valid,
            self._valid_plan,
            BatchShards.of(mesh),
            start=0,
            stop=self._valid_plan.batches_per_epoch,
        )
        values = evaluate_loss(self.loss, params, batches, mesh=mesh, check_stop=check_stop)

        recordings = self._valid.recordings
        count = min(len(recordings), self.config.training.eval_sentences)
        if not count:
            return values

        # Each process transcribes all of them, on one of its devices.
        if mesh.size > 1:
            params = processes.on_this_host(params)
        recognizer = SpeechRecognizer(self.config, params, self.tokenizer)
        sounds = [Sound(recordings[number], recordings.rate) for number in range(count)]
        texts = recognizer.transcribe(sounds, report=lambda _: check_stop())
        references = [transcript or "" for transcript in recordings.transcripts[:count]]
        rates = error_rates(texts, references)
        return values | {
            "word_error_rate": rates.words,
            "letter_error_rate": rates.characters,
        }


def recognition_flops(model: Wav2Vec2Config, rows: int, num_samples: int) -> int:
    """Returns the operations of a training step: of the convolutions over waves, and the layers."""
    multiplications = 0
    frames = num_samples
    channels = 1
    layers = zip(model.conv_widths, model.conv_kernels, model.conv_strides, strict=True)
    for width, kernel, stride in layers:
        frames = (frames - kernel) // stride + 1
        multiplications += frames * kernel * channels * width
        channels = width

    positions = model.position_kernel * model.d_model**2 // model.position_groups
    multiplications += frames * (channels * model.d_model + positions)
    # Forward and two gradients, each with a multiplication and an addition.
    return 6 * rows * multiplications + layers_flops(model, rows, frames)


def _abstract_batch(shape: tuple[int, int], rate: int, most_letters: int) -> SpeechBatch:
    rows, units = shape
    return SpeechBatch(
        samples=jax.ShapeDtypeStruct((rows, units * rate // UNITS_PER_SECOND), jnp.float32),
        lengths=jax.ShapeDtypeStruct((rows,), jnp.int32),
        letters=jax.ShapeDtypeStruct((rows, most_letters), jnp.int32),
    )


def _open_tokenizer(config: Config, folder: Workdir, train: Recordings) -> LettersTokenizer:
    """Returns the letters of a workdir or of a model to begin with, or of the transcripts."""

    def learn() -> LettersTokenizer:
        return LettersTokenizer.learn(transcript or "" for transcript in train.transcripts)

    tokenizer = tokenizer_of_run(config, folder, learn)
    if not isinstance(tokenizer, LettersTokenizer):
        raise UserError("data.tokenizer: expected letters, as of another model of speech")

    size = tokenizer.vocab_size
    if config.model.vocab_size != size:
        raise UserError(
            f"model.vocab_size must be {size}, for the {size - 4} letters of the transcripts and "
            f"special tokens: got {config.model.vocab_size}; give --config.model.vocab_size={size}"
        )
    return tokenizer
