"""Trains a recognizer of speech with CTC (Graves et al. 2006)."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float32, Int32, PyTree

from jaxformer.config import Config, data_section, model_section
from jaxformer.data.batch import Shape
from jaxformer.data.corpus import Corpus
from jaxformer.data.letters_tokenizer import LettersTokenizer
from jaxformer.data.speech import Recordings, SpeechConfig, list_recordings, pad_sounds
from jaxformer.data.tokenizer import PAD
from jaxformer.errors import UserError, prefix_errors
from jaxformer.kinds.speech_recognition import SPEECH_RECOGNITION
from jaxformer.models.wav2vec2 import Wav2Vec2Config
from jaxformer.runs.workdir import Workdir
from jaxformer.tasks.initialization import tokenizer_of_run
from jaxformer.tasks.recordings_task import Utterance, Utterances
from jaxformer.tasks.speech.speech_recognizer import SpeechRecognizer
from jaxformer.tasks.speech.speech_task import (
    SpeechTask,
    abstract_waves,
    keep_recordings,
    spans_of,
    wave_shape,
)
from jaxformer.tasks.token_task import NetworkLoss, TokenTask
from jaxformer.training.ctc import ctc_losses
from jaxformer.training.task import CheckStop, Randomness, Sums


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
            masked = spans_of(model, randomness, batch.samples.shape[1])

        def forward(module: Any, dropout: dict[str, Any]) -> Array:
            return module(batch.samples, batch.lengths, masked=masked, **dropout)

        logits = self.apply(params, randomness, forward)
        losses = ctc_losses(logits, model.num_frames(batch.lengths), batch.letters)
        has_sound = batch.lengths > 0
        return {
            "loss": jnp.where(has_sound, losses, 0).sum(),
            "count": (batch.letters != PAD).sum(dtype=jnp.int32),
        }


class SpeechRecognition(SpeechTask[Utterances], TokenTask):
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
        model = model_section(config, Wav2Vec2Config)
        if model.head != "letters":
            raise UserError(f"model.head must be letters with data.corpus=speech: got {model.head}")

        rate = model.sample_rate
        train = Recordings(list_recordings(data.train, needs_transcripts=True), rate)
        valid = Recordings(list_recordings(data.valid, needs_transcripts=True), rate)
        tokenizer = _open_tokenizer(config, folder, train)

        utterances = _prepare(tokenizer, model, train, data.max_seconds)
        task = cls(
            config,
            train=utterances,
            valid=_prepare(tokenizer, model, valid, None),
            skipped=len(train) - len(utterances.recordings),
        )
        task.tokenizer = tokenizer
        return task

    @staticmethod
    def empty_batch(
        model: Wav2Vec2Config,
        shape: Shape,
        examples: Utterances | None,
    ) -> SpeechBatch:
        rows, units, _ = shape
        # No more letters than units can be aligned.
        most_letters = units if examples is None else examples.longest
        return SpeechBatch(
            *abstract_waves(*wave_shape(shape, model)),
            letters=jax.ShapeDtypeStruct((rows, most_letters), jnp.int32),
        )

    def make_batch(
        self,
        examples: Utterances,
    ) -> Callable[[Sequence[Sequence[Utterance]], Shape], SpeechBatch]:
        return functools.partial(
            make_speech_batch,
            model=self._model,
            most_letters=examples.longest,
        )

    def identity(self) -> dict[str, str]:
        return {"tokenizer": self.tokenizer.sha256, **super().identity()}

    def evaluate(
        self,
        params: PyTree,
        mesh: Mesh,
        check_stop: CheckStop,
    ) -> dict[str, float]:
        """Computes the mean loss of a letter, and error rates of the first recordings."""
        values = super().evaluate(params, mesh, check_stop)
        rates = self.rate_texts(
            params,
            mesh,
            check_stop,
            transcriber=lambda held: SpeechRecognizer(self.config, held, self.tokenizer),
        )
        if rates is None:
            return values
        return values | {
            "word_error_rate": rates.words,
            "letter_error_rate": rates.characters,
        }


def make_speech_batch(
    rows: Sequence[Sequence[Utterance]],
    shape: Shape,
    *,
    model: Wav2Vec2Config,
    most_letters: int,
) -> SpeechBatch:
    """Arranges utterances, one in each row; ``shape`` has rows and units of time."""
    num_rows, num_samples = wave_shape(shape, model)
    letters = np.full((num_rows, most_letters), PAD, np.int32)
    for row, [utterance] in enumerate(rows):
        letters[row, : len(utterance.tokens)] = utterance.tokens

    waves = [utterance.samples for [utterance] in rows]
    samples, lengths = pad_sounds(waves, num_rows, num_samples)
    return SpeechBatch(samples, lengths, letters)


def _prepare(
    tokenizer: LettersTokenizer,
    model: Wav2Vec2Config,
    recordings: Recordings,
    max_seconds: float | None,
) -> Utterances:
    """Returns the utterances that can be aligned."""
    letters = []
    for name, transcript in zip(recordings.names, recordings.transcripts, strict=True):
        with prefix_errors(name):
            letters.append(tokenizer.encode(transcript or ""))

    least = [fewest_frames(each) for each in letters]
    keep = keep_recordings(recordings, model, max_seconds, least)
    kept_letters = [letters[number] for number in keep]
    return Utterances(recordings.select(keep), kept_letters, model.standardized)


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
