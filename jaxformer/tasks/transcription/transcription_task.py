"""Trains an encoder-decoder such as Whisper on recordings and their transcripts."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Bool, Float32, Int32, PyTree

from jaxformer.config import Config, data_section, model_section
from jaxformer.data.batch import Shape
from jaxformer.data.bpe import train_tokenizer
from jaxformer.data.corpus import Corpus
from jaxformer.data.examples import describe_example
from jaxformer.data.findings import list_first
from jaxformer.data.loader import load_batches, round_up
from jaxformer.data.plan import BatchPlan, bucket_plan
from jaxformer.data.sound import Sound
from jaxformer.data.speech import Recordings, list_recordings, pad_sounds
from jaxformer.data.tokenizer import BOS, EOS, PAD, Vocabulary
from jaxformer.data.transcripts import TranscriptsConfig
from jaxformer.data.whisper_tokenizer import WhisperTokenizer
from jaxformer.errors import UserError, prefix_errors
from jaxformer.evaluation.word_error_rate import error_rates
from jaxformer.kinds.transcription import TRANSCRIPTION
from jaxformer.models.whisper import Whisper, WhisperConfig
from jaxformer.nn.log_mel import HOP, SAMPLE_RATE, log_mel
from jaxformer.runs import processes
from jaxformer.runs.workdir import Workdir
from jaxformer.tasks.initialization import tokenizer_of_run
from jaxformer.tasks.token_task import Output, TokenLoss, TokenTask
from jaxformer.tasks.transcription.speech_transcriber import SpeechTranscriber
from jaxformer.training.flops import training_flops
from jaxformer.training.placement import BatchShards
from jaxformer.training.task import CheckStop, Randomness, Sums
from jaxformer.training.validation import evaluate_loss

# Targets are padded to a multiple of this, so that few lengths need a program.
_LENGTHS = 8


class TranscriptBatch(NamedTuple):
    """Recordings and their transcripts, one in each row.

    Attributes:
      samples: Waves, padded with silence to the length that the model reads.
      tgt_in: Input of the decoder: beginning, prompt and text.
      tgt_out: The next tokens, which end with EOS.
      counted: True for the tokens of the text and its end, which have a loss.
    """

    samples: Float32[Any, "B N"]
    tgt_in: Int32[Any, "B T"]
    tgt_out: Int32[Any, "B T"]
    counted: Bool[Any, "B T"]


class Utterance(NamedTuple):
    """A recording, and the tokens of its transcript without prompt and end."""

    samples: Float32[np.ndarray, " N"]
    tokens: Sequence[int]


@dataclasses.dataclass(frozen=True)
class Utterances:
    """The utterances of a split, by their numbers."""

    recordings: Recordings
    tokens: Sequence[Sequence[int]]

    def __getitem__(self, number: int) -> Utterance:
        return Utterance(self.recordings[number], self.tokens[number])

    @property
    def longest(self) -> int:
        """Largest number of tokens of a transcript."""
        return max(map(len, self.tokens))


def make_transcript_batch(
    rows: Sequence[Sequence[Utterance]],
    shape: Shape,
    *,
    num_samples: int,
    length: int,
    prompt: Sequence[int],
) -> TranscriptBatch:
    """Arranges utterances, one in each row.

    Args:
      rows: The utterances; each row has one.
      shape: Its first number is the number of rows, which may be more.
      num_samples: Samples that the model reads.
      length: Length of the targets, with their prompt and their end.
      prompt: First tokens of the decoder's input.
    """
    num_rows, _, _ = shape
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
    samples, _ = pad_sounds(sounds, num_rows, num_samples)
    return TranscriptBatch(samples, tgt_in, tgt_out, counted)


class TranscriptionLoss(TokenLoss):
    """Sums the loss of the tokens of transcripts, given log-mel spectrograms and prompts."""

    def __call__(
        self,
        params: PyTree,
        batch: TranscriptBatch,
        randomness: Randomness | None,
    ) -> Sums:
        model: WhisperConfig = self.model  # pyright: ignore[reportAssignmentType]
        features = log_mel(batch.samples, model.num_mel_bins)

        def forward(module: Whisper, dropout: dict[str, Any]) -> Output:
            decoded = module.target_features(
                features,
                batch.tgt_in,
                tgt_segments=(batch.tgt_in != PAD).astype(jnp.int32),
                **dropout,
            )
            return decoded, module.output_projection()

        output = self.apply(params, randomness, forward)
        return self.sums(output, batch.tgt_out, batch.counted)


class Transcription(TokenTask):
    """Trains a :class:`~jaxformer.Whisper` on recordings with transcripts.

    Validates with loss and perplexity, and with the error rates of words and characters.
    """

    kind = TRANSCRIPTION
    loss_class = TranscriptionLoss
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
        self.config = config
        self.tokenizer = tokenizer
        self._section = data_section(config, TranscriptsConfig)
        self._model = model_section(config, WhisperConfig)
        self._prompt = _training_prompt(tokenizer, self._section)
        self._train, self._skipped = self._prepare("train", train, self._section.max_seconds)
        self._valid, _ = self._prepare("valid", valid, _window_seconds(self._model))
        self._plan = self._make_plan(self._train, config.training.seed)
        self._valid_plan = self._make_plan(self._valid, None)

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
        window = _window_seconds(model_section(config, WhisperConfig))
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

        train = Recordings(list_recordings(data.train, needs_transcripts=True), SAMPLE_RATE)
        valid = Recordings(list_recordings(data.valid, needs_transcripts=True), SAMPLE_RATE)
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
        return Utterances(recordings.select(keep), tokens), skipped

    def _make_plan(self, split: Utterances, seed: int | None) -> BatchPlan:
        """Plans batches of rows that all have the length that the model reads."""
        positions = np.full(len(split.recordings), self._model.max_source_length)
        return bucket_plan(
            positions,
            positions,
            tokens_per_batch=self._section.units_per_batch,
            seed=seed,
        )

    @classmethod
    def longest_batch(cls, config: Config, shards: BatchShards) -> PyTree:
        data = data_section(config, TranscriptsConfig)
        model = model_section(config, WhisperConfig)
        rows = data.units_per_batch // model.max_source_length
        length = min(round_up(data.max_length, _LENGTHS), model.max_length)
        return _abstract_batch(round_up(rows, shards.row_multiple), model, length)

    def shapes(self, shards: BatchShards) -> Sequence[PyTree]:
        batches = []
        for rows, _, _ in self._plan.shapes:
            padded_rows = round_up(rows, shards.row_multiple)
            length = self._target_length(self._train)
            batches.append(_abstract_batch(padded_rows, self._model, length))
        return batches

    def _target_length(self, split: Utterances) -> int:
        """Returns the length of targets, with prompt or end, padded but as the model allows."""
        length = round_up(len(self._prompt) + split.longest, _LENGTHS)
        return min(length, self._model.max_length)

    def batches(self, start: int, shards: BatchShards) -> Iterator[TranscriptBatch]:
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
    ) -> Iterator[TranscriptBatch]:
        make = functools.partial(
            make_transcript_batch,
            num_samples=_num_samples(self._model),
            length=self._target_length(split),
            prompt=self._prompt,
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
                line += f", {self._skipped:,} skipped, which are too long"
            lines.append(line)

        for _, recordings in splits:
            transcript = recordings.transcripts[0] or ""
            lines.append(describe_example(recordings.names[0], [("transcript", transcript)]))
        return "\n".join(lines)

    def flops(self, batch: TranscriptBatch) -> int:
        rows, length = batch.tgt_in.shape
        return training_flops(self._model, rows, self._model.max_source_length, tgt_length=length)

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
        """Computes loss and perplexity, and error rates of the first recordings."""
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
        transcriber = SpeechTranscriber(self.config, params, self.tokenizer)
        sounds = [Sound(recordings[number], recordings.rate) for number in range(count)]
        texts = transcriber.transcribe(sounds, report=lambda _: check_stop())
        references = [transcript or "" for transcript in recordings.transcripts[:count]]
        rates = error_rates(texts, references)
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


def _num_samples(model: WhisperConfig) -> int:
    num_frames, _ = model.features_shape
    return num_frames * HOP


def _window_seconds(model: WhisperConfig) -> float:
    return _num_samples(model) / SAMPLE_RATE


def _abstract_batch(rows: int, model: WhisperConfig, length: int) -> TranscriptBatch:
    tokens = jax.ShapeDtypeStruct((rows, length), jnp.int32)
    return TranscriptBatch(
        samples=jax.ShapeDtypeStruct((rows, _num_samples(model)), jnp.float32),
        tgt_in=tokens,
        tgt_out=tokens,
        counted=jax.ShapeDtypeStruct((rows, length), jnp.bool_),
    )
