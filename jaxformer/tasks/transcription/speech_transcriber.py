"""Transcription of speech with a trained encoder-decoder, such as Whisper."""

import bisect
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32

from jaxformer.config import data_section, model_section
from jaxformer.data.sound import Sound
from jaxformer.data.transcripts import TranscriptsConfig
from jaxformer.data.whisper_tokenizer import WhisperTokenizer
from jaxformer.errors import UserError
from jaxformer.inference.array_inputs import ArrayInput, ArrayInputs
from jaxformer.inference.array_predictor import ArrayPredictor
from jaxformer.inference.decoder import Decoder
from jaxformer.kinds.transcription import TRANSCRIPTION
from jaxformer.models.whisper import WhisperConfig
from jaxformer.nn.log_mel import HOP, SAMPLE_RATE, log_mel
from jaxformer.search import BeamSearch, Constraint
from jaxformer.search.constraints import Suppress, SuppressFirst
from jaxformer.tasks.speech.transcriber import Transcriber

# Windows that are encoded together: in Whisper, each has 1,500 positions that see all others.
_WINDOWS = 8
# A recording that is longer than a window is cut where it is quietest in the last fifth of one.
_LAST_PART = 5
_QUIET_SECONDS = 0.1


class SpeechTranscriber(ArrayPredictor, Transcriber):
    """Writes the texts of recordings with the model of a workdir.

    >>> transcriber = SpeechTranscriber.load("runs/whisper")  # doctest: +SKIP
    >>> transcriber.transcribe([read_sound(pathlib.Path("a.wav"))], language="de")  # doctest: +SKIP
    ['Das Haus ist alt.']

    A model reads windows of a fixed length, 30 seconds in Whisper. A longer recording is cut at
    quiet places into windows that the model reads one by one, without timestamps: what is said
    across a cut may be lost or written twice.
    """

    kinds = (TRANSCRIPTION,)
    most_rows = _WINDOWS

    def transcribe(
        self,
        sounds: Sequence[Sound],
        *,
        language: str | None = None,
        task: str | None = None,
        report: Callable[[int], object] = lambda finished: None,
    ) -> list[str]:
        """Returns the text of each recording, in the order given.

        Args:
          sounds: Recordings, at any rate.
          language: Code of the spoken language, such as "de", in a model of many. When None, the
            config's; if there is none either, the model detects the language of each recording
            from its first window.
          task: "transcribe", or "translate" to English; the config's when None.
          report: Called with the number of recordings that each batch of windows finishes.

        Raises:
          UserError: The model has no such language or task.
        """
        windows: list[Float32[np.ndarray, " N"]] = []
        ends = []
        for sound in sounds:
            windows += split_at_quiet_places(sound.at(SAMPLE_RATE), self.window)
            ends.append(len(windows))
        ranges = list(itertools.pairwise([0, *ends]))

        features = self._features(windows)
        first_features = [features[first] for first, _ in ranges]
        prompts = self._prompts(first_features, language, task)

        inputs = []
        for prompt, (first, end) in zip(prompts, ranges, strict=True):
            for number in range(first, end):
                inputs.append(ArrayInput((features[number],), prompt, number))

        longest_prompt = max((len(prompt) for prompt in prompts), default=0)
        found = self.decode_arrays(
            inputs,
            n_best=1,
            max_tokens=self.max_length - longest_prompt,
            constraints=self.constraints,
            report=_report_recordings(report, ends),
        )

        # Whisper's texts begin with a space where they should have one.
        texts = []
        for hypotheses in found:
            texts.append(hypotheses[0].text if hypotheses else "")
        separator = "" if isinstance(self.tokenizer, WhisperTokenizer) else " "
        joined = []
        for first, end in ranges:
            joined.append(separator.join(texts[first:end]).strip())
        return joined

    def detect_languages(self, sounds: Sequence[Sound]) -> list[str]:
        """Returns the code of the language of each recording, from its first window."""
        starts = [next(split_at_quiet_places(each.at(SAMPLE_RATE), self.window)) for each in sounds]
        return self.detect_languages_of(self._features(starts))

    @property
    def window(self) -> int:
        """Number of samples that the model reads at once."""
        num_frames, _ = model_section(self.config, WhisperConfig).features_shape
        return num_frames * HOP

    def _features(
        self, windows: Sequence[Float32[np.ndarray, " N"]]
    ) -> list[Float32[np.ndarray, "F M"]]:
        """Returns the features of windows, which are padded with silence."""
        num_bins = model_section(self.config, WhisperConfig).num_mel_bins
        found: list[Float32[np.ndarray, "F M"]] = []
        for start in range(0, len(windows), _WINDOWS):
            rows = pad_windows(windows[start : start + _WINDOWS], _WINDOWS, self.window)
            features = np.asarray(_log_mel(rows, num_bins))
            found += list(features)
        return found[: len(windows)]

    def _prompts(
        self,
        features: Sequence[Float32[np.ndarray, "F M"]],
        language: str | None,
        task: str | None,
    ) -> list[list[int]]:
        """Returns the first tokens of the decoder for each recording, given its first window."""
        data = data_section(self.config, TranscriptsConfig)
        tokenizer = self.tokenizer
        if not isinstance(tokenizer, WhisperTokenizer):
            if language is not None or task is not None:
                raise UserError(
                    "expected no language and no task, since the model's tokenizer has no tokens "
                    f"for them: got {language or task}"
                )
            return [[] for _ in features]

        language = language or data.language
        task = task or data.task
        if language is None and tokenizer.spoken:
            language = tokenizer.default_language
        if language is None and tokenizer.spoken:
            detected = self.detect_languages_of(features)
            return [tokenizer.prompt(code, task) for code in detected]
        return [tokenizer.prompt(language, task) for _ in features]

    def detect_languages_of(self, features: Sequence[Float32[np.ndarray, "F M"]]) -> list[str]:
        """Works as :meth:`detect_languages` does, given the features of the first windows.

        A language is the one whose token is the likeliest after the beginning of a transcript.
        """
        tokenizer = self.tokenizer
        if not isinstance(tokenizer, WhisperTokenizer) or not tokenizer.spoken:
            raise UserError("expected a model of several languages, to detect them: got one of one")

        codes = {number: code for code, number in tokenizer.spoken.items()}
        others = np.setdiff1d(np.arange(tokenizer.vocab_size), [*codes])
        greedy = BeamSearch(beam_size=1, constraints=(Suppress(others),))
        plan = ArrayInputs(max_tokens=1, most_rows=self.most_rows)
        decoder = Decoder(self.models, greedy, plan)

        items = [ArrayInput((row,), number=number) for number, row in enumerate(features)]
        found = decoder.decode(items)
        return [codes[found[number].tokens[0][0]] for number in range(len(items))]

    @functools.cached_property
    def constraints(self) -> list[Constraint]:
        """The constraints of the tokens that the model may not write."""
        if not isinstance(self.tokenizer, WhisperTokenizer):
            return []
        never = np.array(self.tokenizer.suppressed, np.int32)
        not_first = np.array(self.tokenizer.suppressed_first, np.int32)
        return [Suppress(never), SuppressFirst(not_first)]


def _report_recordings(
    report: Callable[[int], object], ends: Sequence[int]
) -> Callable[[int], None]:
    """Returns a function that is called with numbers of windows, and reports recordings.

    Windows finish in their order. ``ends`` are the numbers of windows up to each recording's last.
    """
    finished = 0

    def report_windows(count: int) -> None:
        nonlocal finished
        before = bisect.bisect_right(ends, finished)
        finished += count
        report(bisect.bisect_right(ends, finished) - before)

    return report_windows


@functools.partial(jax.jit, static_argnums=1)
def _log_mel(waves: Float[Array, "B S"], num_bins: int) -> Float[Array, "B F M"]:
    return log_mel(jnp.asarray(waves), num_bins)


def pad_windows(
    windows: Sequence[Float32[np.ndarray, " N"]], num_rows: int, window: int
) -> Float32[Any, "B S"]:
    """Arranges windows, one in each row, and pads them with zeros."""
    rows = np.zeros((num_rows, window), np.float32)
    for row, wave in zip(rows, windows, strict=False):
        row[: len(wave)] = wave
    return rows


def split_at_quiet_places(
    wave: Float32[np.ndarray, " N"], window: int
) -> Iterator[Float32[np.ndarray, " S"]]:
    """Yields a recording in parts of at most a window, cut where its last fifth is quietest."""
    quiet = min(int(_QUIET_SECONDS * SAMPLE_RATE), window // _LAST_PART)
    while len(wave) > window:
        first = window - window // _LAST_PART
        energy = np.square(wave[first:window], dtype=np.float64)
        sums = np.cumsum(np.concatenate([[0], energy]))
        energies = sums[quiet:] - sums[:-quiet]  # of each span
        cut = first + int(energies.argmin()) + quiet // 2
        yield wave[:cut]
        wave = wave[cut:]
    yield wave
