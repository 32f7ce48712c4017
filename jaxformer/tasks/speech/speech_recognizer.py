"""Recognition of speech with a trained model: the most probable letter of each frame."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Float32, Int, PyTree

from jaxformer.data.letters_tokenizer import LettersTokenizer
from jaxformer.data.loader import round_up
from jaxformer.data.sound import Sound, standardize
from jaxformer.data.speech import UNITS_PER_SECOND, pad_sounds
from jaxformer.data.tokenizer import PAD
from jaxformer.errors import UserError
from jaxformer.inference.weights import EncoderPredictor
from jaxformer.kinds.speech_recognition import SPEECH_RECOGNITION
from jaxformer.layout import global_mesh
from jaxformer.models.wav2vec2 import Wav2Vec2, Wav2Vec2Config
from jaxformer.tasks.transcriber import Transcriber

_BATCH_SIZE = 16
# Recordings are padded to multiples of half a second.
_UNITS = UNITS_PER_SECOND // 2
# Attention takes memory in proportion to the square of the duration.
_MOST_SECONDS = 120


class SpeechRecognizer(EncoderPredictor, Transcriber):
    """Transcribes recordings with the model of a workdir.

    >>> recognizer = SpeechRecognizer.load("runs/spoken_numerals")  # doctest: +SKIP
    >>> recognizer.transcribe([read_sound(pathlib.Path("a.wav"))])  # doctest: +SKIP
    ['three hundred and five']

    Attributes:
      config: The config of the run.
      params: Parameters.
      tokenizer: Letters.
      weights: Description of the checkpoint, such as "step 2000".
    """

    kinds = (SPEECH_RECOGNITION,)
    tokenizer: LettersTokenizer

    def _describe_outputs(self) -> str:
        return f"{self.tokenizer.vocab_size} letters"

    def transcribe(
        self,
        sounds: Sequence[Sound],
        *,
        language: str | None = None,
        task: str | None = None,
        report: Callable[[int], object] = lambda _: None,
    ) -> list[str]:
        if language is not None or task is not None:
            raise UserError(
                "expected no language and no task, since the model writes the letters that it "
                f"hears: got {language or task}"
            )

        texts = []
        for log_probs in self.letter_log_probs(sounds, report=report):
            ids = collapse(log_probs.argmax(axis=-1))
            texts.append(self.tokenizer.decode(ids))
        return texts

    def letter_log_probs(
        self,
        sounds: Sequence[Sound],
        *,
        report: Callable[[int], object] = lambda _: None,
    ) -> list[Float[np.ndarray, "T V"]]:
        """Returns the log-probability of each letter in each frame; letter 0 is the blank."""
        model: Wav2Vec2Config = self.config.model  # pyright: ignore[reportAssignmentType]
        waves = [self._prepare(sound, f"recording {n}") for n, sound in enumerate(sounds, start=1)]
        by_length = sorted(range(len(waves)), key=lambda number: len(waves[number]))
        step = _UNITS * model.sample_rate // UNITS_PER_SECOND

        results: dict[int, np.ndarray] = {}
        for start in range(0, len(waves), _BATCH_SIZE):
            chosen = by_length[start : start + _BATCH_SIZE]
            length = round_up(len(waves[chosen[-1]]), step)
            # The last batch has rows of padding, so that it needs no other program.
            rows = pad_sounds([waves[number] for number in chosen], _BATCH_SIZE, length)
            found = self._run(rows.samples, rows.lengths)
            for row, number in enumerate(chosen):
                frames = model.num_frames(len(waves[number]))
                results[number] = found[row, :frames]
            report(len(chosen))
        return [results[number] for number in range(len(waves))]

    def _prepare(self, sound: Sound, place: str) -> Float32[np.ndarray, " N"]:
        """Returns a wave as the model takes it."""
        model: Wav2Vec2Config = self.config.model  # pyright: ignore[reportAssignmentType]
        wave = sound.at(model.sample_rate)
        if not model.shortest <= len(wave) <= _MOST_SECONDS * model.sample_rate:
            raise UserError(
                f"{place}: expected {model.shortest / model.sample_rate:.3f} to {_MOST_SECONDS} "
                f"seconds, got {len(wave) / model.sample_rate:.3f}; cut it into sentences"
            )
        return standardize(wave) if model.standardized else wave

    @global_mesh(None)
    def _run(self, samples: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        found = _letter_log_probs(self.config.model, self.params, samples, lengths)
        return np.asarray(found)


def collapse(letters: Int[np.ndarray, " T"]) -> list[int]:
    """Returns the letters of frames by the rule of CTC: repeated ones once, and no blanks.

    >>> collapse(np.array([0, 5, 5, 0, 5, 7, 7]))
    [5, 5, 7]
    """
    is_new = np.append(True, letters[1:] != letters[:-1])[: len(letters)]
    return letters[is_new & (letters != PAD)].tolist()


@functools.partial(jax.jit, static_argnums=0)
def _letter_log_probs(
    config: Wav2Vec2Config,
    params: PyTree,
    samples: Float[Array, "B N"],
    lengths: Int[Array, " B"],
) -> Float[Array, "B T V"]:
    logits: Any = Wav2Vec2(config).apply({"params": params}, samples, lengths)
    return jax.nn.log_softmax(logits)
