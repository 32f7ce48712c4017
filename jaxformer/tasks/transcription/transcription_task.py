"""Trains encoder-decoders such as Whisper on recordings and their transcripts."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Bool, Float32, Int32, PyTree

from jaxformer.config import Config, data_section
from jaxformer.data.batch import Shape
from jaxformer.data.bpe import train_tokenizer
from jaxformer.data.corpus import Corpus
from jaxformer.data.loader import round_up
from jaxformer.data.plan import BatchPlan
from jaxformer.data.speech import (
    UNITS_PER_SECOND,
    Recordings,
    duration_plan,
    list_recordings,
    pad_sounds,
)
from jaxformer.data.tokenizer import BOS, EOS, PAD, Vocabulary
from jaxformer.data.transcripts import TranscriptsConfig
from jaxformer.data.whisper_tokenizer import WhisperTokenizer
from jaxformer.errors import UserError, prefix_errors
from jaxformer.kinds.transcription import TRANSCRIPTION, RecordingReader
from jaxformer.models.whisper import WhisperConfig
from jaxformer.runs.workdir import Workdir
from jaxformer.tasks.initialization import tokenizer_of_run
from jaxformer.tasks.recordings_task import RecordingsTask, Utterance, Utterances
from jaxformer.tasks.speech.speech_task import abstract_waves, recognition_flops
from jaxformer.tasks.token_task import Output, TokenLoss, TokenTask
from jaxformer.tasks.transcription.speech_transcriber import SpeechTranscriber
from jaxformer.training.flops import decoder_flops, training_flops
from jaxformer.training.placement import BatchShards
from jaxformer.training.task import CheckStop, Randomness, Sums

# Targets are padded to a multiple of this, so that few lengths need a program.
_LENGTHS = 8


class TranscriptBatch(NamedTuple):
    """Recordings and their transcripts, one in each row.

    Attributes:
      samples: Waves, padded with silence.
      lengths: Number of samples of each row without padding.
      tgt_in: Input of the decoder: beginning, prompt and text.
      tgt_out: The next tokens, which end with EOS.
      counted: True for the tokens of the text and its end, which have a loss.
    """

    samples: Float32[Any, "B N"]
    lengths: Int32[Any, " B"]
    tgt_in: Int32[Any, "B T"]
    tgt_out: Int32[Any, "B T"]
    counted: Bool[Any, "B T"]


def make_transcript_batch(
    rows: Sequence[Sequence[Utterance]],
    shape: Shape,
    *,
    model: RecordingReader,
    length: int,
    prompt: Sequence[int],
) -> TranscriptBatch:
    """Arranges utterances, one in each row.

    Args:
      rows: The utterances; each row has one.
      shape: Its first number is the number of rows, which may be more; the second is the units of
        time in each.
      model: The section of the model.
      length: Length of the targets, with their prompt and their end.
      prompt: First tokens of the decoder's input.
    """
    num_rows, units, _ = shape
    tgt_in = np.full((num_rows, length), PAD, np.int32)
    tgt_out = np.full((num_rows, length), PAD, np.int32)
    counted = np.zeros((num_rows, length), bool)

    for row, [utterance] in enumerate(rows):
        sequence = [*prompt, *utterance.tokens, EOS]
        size = len(sequence) - 1
        tgt_in[row, :size] = sequence[:-1]
        tgt_out[row, :size] = sequence[1:]
        counted[row, len(prompt) - 1 : size] = True

    sounds = [utterance.samples for [utterance] in rows]
    samples, lengths = pad_sounds(sounds, num_rows, _num_samples(model, units))
    return TranscriptBatch(samples, lengths, tgt_in, tgt_out, counted)


class TranscriptionLoss(TokenLoss):
    """Sums the loss of the tokens of transcripts, given recordings and prompts."""

    def __call__(
        self,
        params: PyTree,
        batch: TranscriptBatch,
        randomness: Randomness | None,
    ) -> Sums:
        model: RecordingReader = self.model  # pyright: ignore[reportAssignmentType]
        arrays = model.encoder_inputs(batch.samples, batch.lengths)

        def forward(module: Any, dropout: dict[str, Any]) -> Output:
            decoded = module.target_features(*arrays, tgt_in=batch.tgt_in, **dropout)
            return decoded, module.output_projection()

        output = self.apply(params, randomness, forward)
        return self.sums(output, batch.tgt_out, batch.counted)


class Transcription(RecordingsTask[Utterances], TokenTask):
    """Trains a model such as :class:`~jaxformer.Whisper` on recordings with transcripts.

    Validates with loss and perplexity, and with the error rates of words and characters.
    """

    kind = TRANSCRIPTION
    loss_class = TranscriptionLoss
    skipped_because = "too long"
    log_formats = {  # noqa: RUF012
        "word_error_rate": "word error rate {:.1f} %",
        "character_error_rate": "of characters {:.1f} %",
    }

    def __init__(
        self,
        config: Config,
        tokenizer: Vocabulary,
        train: Recordings,
        valid: Recordings,
    ) -> None:
        self.tokenizer = tokenizer
        self._section = data_section(config, TranscriptsConfig)
        self._model: Any = config.model  # also a RecordingReader
        self._prompt = _training_prompt(tokenizer, self._section)
        utterances, skipped = self._prepare("train", train, self._section.max_seconds)
        window = _window_seconds(self._model) or self._section.max_seconds
        valid_utterances, _ = self._prepare("valid", valid, window)
        super().__init__(
            config,
            utterances,
            valid_utterances,
            plan=self._make_plan(utterances, config.training.seed),
            valid_plan=self._make_plan(valid_utterances, None),
            skipped=skipped,
        )

    @classmethod
    def open(
        cls,
        config: Config,
        folder: Workdir,
        corpus: Corpus | None = None,
    ) -> "Transcription":
        if corpus is not None:
            raise UserError("corpus: expected none with speech; name recordings in data.train")

        data = data_section(config, TranscriptsConfig)
        model: Any = config.model
        window = _window_seconds(model)
        if window is not None:
            _check_window(data, window)

        rate = model.sample_rate
        train = Recordings(list_recordings(data.train, needs_transcripts=True), rate)
        valid = Recordings(list_recordings(data.valid, needs_transcripts=True), rate)
        tokenizer = _open_tokenizer(config, folder, train)
        return cls(config, tokenizer, train=train, valid=valid)

    def _prepare(
        self,
        split: str,
        recordings: Recordings,
        max_seconds: float,
    ) -> tuple[Utterances, int]:
        """Returns the utterances that are short enough, and how many are skipped."""
        most_tokens = self._section.max_length - len(self._prompt)
        most_samples = max_seconds * recordings.rate

        tokens = []
        keep = []
        for number, transcript in enumerate(recordings.transcripts):
            with prefix_errors(recordings.names[number]):
                ids = self.tokenizer.encode_target(transcript or "")
            if recordings.lengths[number] <= most_samples and len(ids) <= most_tokens:
                keep.append(number)
                tokens.append(ids)

        skipped = len(recordings) - len(keep)
        if not keep:
            raise UserError(
                f"data.{split}: no recording is left: {skipped:,} are longer than {max_seconds:g} "
                f"seconds, or their transcripts have more than {most_tokens} tokens"
            )
        utterances = Utterances(recordings.select(keep), tokens, self._model.is_standardized)
        return utterances, skipped

    def _make_plan(self, split: Utterances, seed: int | None) -> BatchPlan:
        """Plans batches of rows of similar duration, or of the length that the model reads."""
        units = np.maximum(split.recordings.units, _fewest_units(self._model))
        return duration_plan(units, units_per_batch=self._section.units_per_batch, seed=seed)

    @classmethod
    def longest_batch(cls, config: Config, shards: BatchShards) -> PyTree:
        data = data_section(config, TranscriptsConfig)
        model: Any = config.model
        units = max(data.max_units, _fewest_units(model))
        rows = round_up(data.units_per_batch // units, shards.row_multiple)
        length = min(round_up(data.max_length, _LENGTHS), model.max_length)
        return _abstract_batch(rows, _num_samples(model, units), length)

    def shapes(self, shards: BatchShards) -> Sequence[PyTree]:
        batches = []
        for rows, units, _ in self._plan.shapes:
            padded_rows = round_up(rows, shards.row_multiple)
            num_samples = _num_samples(self._model, units)
            length = self._target_length(self._train)
            batches.append(_abstract_batch(padded_rows, num_samples, length))
        return batches

    def _target_length(self, split: Utterances) -> int:
        """Returns the length of targets, with prompt or end, padded but as the model allows."""
        length = round_up(len(self._prompt) + split.longest, _LENGTHS)
        return min(length, self._model.max_length)

    def make_batch(
        self,
        examples: Utterances,
    ) -> Callable[[Sequence[Sequence[Utterance]], Shape], TranscriptBatch]:
        return functools.partial(
            make_transcript_batch,
            model=self._model,
            length=self._target_length(examples),
            prompt=self._prompt,
        )

    def identity(self) -> dict[str, str]:
        return {"tokenizer": self.tokenizer.sha256, **super().identity()}

    def flops(self, batch: TranscriptBatch) -> int:
        rows, length = batch.tgt_in.shape
        model = self._model
        if isinstance(model, WhisperConfig):
            return training_flops(model, rows, model.max_source_length, tgt_length=length)

        _, num_samples = batch.samples.shape
        encoder = model.encoder_section()
        decoder = decoder_flops(model, rows, length, memory=model.num_frames(num_samples))
        return recognition_flops(encoder, rows, num_samples) + decoder

    def evaluate(
        self,
        params: PyTree,
        mesh: Mesh,
        check_stop: CheckStop,
    ) -> dict[str, float]:
        """Computes loss and perplexity, and error rates of the first recordings."""
        values = super().evaluate(params, mesh, check_stop)
        rates = self.rate_texts(
            params,
            mesh,
            check_stop,
            transcriber=lambda held: SpeechTranscriber(self.config, held, self.tokenizer),
        )
        if rates is None:
            return values
        return values | {
            "word_error_rate": rates.words,
            "character_error_rate": rates.characters,
        }


def _training_prompt(tokenizer: Vocabulary, data: TranscriptsConfig) -> list[int]:
    """Returns the first tokens of the decoder, of the language and the task that are trained."""
    if not isinstance(tokenizer, WhisperTokenizer):
        if data.language is not None or data.task != "transcribe":
            raise UserError(
                "data.language and data.task need a tokenizer with tokens for them, as of an "
                f"imported Whisper: got {data.language or data.task}"
            )
        return [BOS]

    if tokenizer.spoken and data.language is None:
        known = ", ".join(tokenizer.spoken)
        raise UserError(
            "data.language: expected the code of the language of the recordings, since the model "
            f"has several, {known:.80}: got none"
        )
    with prefix_errors("data.language and data.task"):
        return tokenizer.prompt(data.language, data.task)


def _open_tokenizer(config: Config, folder: Workdir, train: Recordings) -> Vocabulary:
    """Returns the tokenizer of a workdir or of a model to begin with, or one of the transcripts."""

    def learn() -> Vocabulary:
        texts = [transcript or "" for transcript in train.transcripts]
        return train_tokenizer(texts, config.model.vocab_size)

    return tokenizer_of_run(config, folder, learn)


def _window_seconds(model: RecordingReader) -> float | None:
    """Returns the seconds that a model reads at most; None for any number."""
    if model.longest is None:
        return None
    return model.longest / model.sample_rate


def _check_window(data: TranscriptsConfig, window: float) -> None:
    """Refuses durations that do not suit a model that reads so many seconds at once."""
    if data.max_seconds > window:
        raise UserError(
            f"data.max_seconds must be at most {window:g}, the seconds that the model reads: "
            f"got {data.max_seconds:g}"
        )
    if data.seconds_per_batch < window:
        raise UserError(
            f"data.seconds_per_batch must be at least {window:g}, the seconds that the model "
            f"reads, which each recording is padded to: got {data.seconds_per_batch:g}"
        )


def _fewest_units(model: RecordingReader) -> int:
    """Returns the units of time of the shortest input, the last one begun."""
    return -(-model.shortest * UNITS_PER_SECOND // model.sample_rate)


def _num_samples(model: RecordingReader, units: int) -> int:
    """Returns the samples of a row of so many units of time."""
    return max(model.shortest, units * model.sample_rate // UNITS_PER_SECOND)


def _abstract_batch(rows: int, num_samples: int, length: int) -> TranscriptBatch:
    tokens = jax.ShapeDtypeStruct((rows, length), jnp.int32)
    samples, lengths = abstract_waves(rows, num_samples)
    return TranscriptBatch(
        samples=samples,
        lengths=lengths,
        tgt_in=tokens,
        tgt_out=tokens,
        counted=jax.ShapeDtypeStruct((rows, length), jnp.bool_),
    )
